"""The other sections of a run, and the root `Config`."""

import dataclasses

from jaxrl_llm.config.model import ModelConfig
from jaxrl_llm.config.objective import (
  AdvantageConfig,
  AggregationConfig,
  BatchConfig,
  CorrectionConfig,
  CriticConfig,
  EntropyConfig,
  EstimatorConfig,
  KLConfig,
  LossConfig,
  VocabularyConfig,
)
from jaxrl_llm.config.task import TaskConfig
from jaxrl_llm.fields import DEFAULT, option


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
  prompts: int = option(32, "prompts per iteration", low=1)
  group_size: int = option(8, "G, completions per prompt", low=1)
  max_prompt_tokens: int = option(16, "prompt part of a row, tokens", low=1)
  max_new_tokens: int = option(48, "completion part of a row, tokens; longer is truncated", low=1)
  min_new_tokens: int = option(
      0, "no stop token before this many completion tokens, in sampler and loss", low=0)
  stop_strings: tuple = option(
      (), "slots > 0, no tool: texts that end a row; the verifier reads what is in front")
  temperature: float = option(1.0, "sampling temperature; the loss uses the same", low=1e-3,
                              high=100.0)
  window: int = option(32, "decode steps between two growths of the attended cache", low=1)
  slots: int = option(
      0, "rows in flight, refilled as they end (rollouts/engine.py); 0: all rows in one program",
      low=0)
  chunk: int = option(32, "slots > 0: decode steps between two looks at who has ended", low=1)
  compaction: int = option(
      1, "slots > 0: smaller batches per halving, for the rows left at the end; 0: none", low=0,
      high=2)
  shared_prefix: bool = option(
      False, "slots > 0: a group's rows attend to one copy of their prompt's cache")
  max_turns: int = option(
      0, "slots > 0, a task with a tool: policy turns of a row; 0: one turn, no tool", low=0)
  max_turn_tokens: int | None = option(
      None, "max_turns > 0: tokens of one turn; unset: what the row has left", low=1)
  max_tool_tokens: int = option(256, "max_turns > 0: tokens that one tool answer may add", low=1)
  tool_chunks: int | None = option(
      1, "max_turns > 0: chunks until an answer is entered, late or not: runs repeat bit "
      "for bit; none: as it comes, so that a slow tool delays its own row alone", low=0)
  tool_workers: int = option(
      4, "max_turns > 0: calls answered at once, and workers of the Python sandbox", low=1,
      high=1024)
  dtype: str = option(DEFAULT,
                      "of the sampler's activations and products; `default`: model.compute_dtype",
                      choices=(DEFAULT, "float32", "bfloat16"))
  cache_dtype: str = option(DEFAULT, "of the sampler's keys and values; `default`: rollout.dtype",
                            choices=(DEFAULT, "float32", "bfloat16"))
  quantization: str = option(
      "none", "rounding of the sampler's attention and MLP matrices (rollouts/numerics.py)",
      choices=("none", "int8"))
  meter_rows: int = option(
      8, "rows scored for the mismatch meter where no other pass serves; 0: no meter", low=0)


@dataclasses.dataclass(frozen=True)
class DynamicSamplingConfig:
  """DAPO: groups whose rewards are all equal teach nothing; they are dropped and drawn again."""

  enabled: bool = option(False, "drop constant groups and refill")
  max_draws: int = option(10, "rollout batches drawn for one iteration before the run stops", low=1)


@dataclasses.dataclass(frozen=True)
class ShapingConfig:
  """Changes to the verified reward, over whole groups."""

  name: str = option("none", "length-aware reward", choices=("none", "grpo_lambda"))
  alpha: float = option(0.6, "grpo_lambda: size of the length penalty (unconfirmed)", low=0.0,
                        high=1.0)
  fraction: float = option(
      0.2, "grpo_lambda: share of groups, the most accurate, that are penalised (unconfirmed)",
      low=0.0, high=1.0)
  overlong_buffer: int = option(
      0, "soft overlong penalty over the last tokens before the limit; 0: none", low=0)
  overlong_factor: float = option(1.0, "penalty at the limit", low=0.0)
  mask_truncated: bool = option(False, "rows that hit the length limit are taken out whole")


@dataclasses.dataclass(frozen=True)
class PipoConfig:
  """Retrospective verification: one more step on the previous batch, weighted by whether the reward
  rose.
  """

  enabled: bool = option(False, "take the extra step, before the fresh batch")
  history: int = option(8, "K, mean rewards that the fresh one is compared with", low=2)
  negative_slope: float = option(0.1, "lambda, weight of a fall against a rise", low=0.0)
  xi_clip: float | None = option(3.0, "bound on the standardised change; none: unbounded", low=0.0)
  threshold: float = option(0.0, "no step where the standardised change is smaller", low=0.0)


@dataclasses.dataclass(frozen=True)
class UpdateConfig:
  anchor: str = option(DEFAULT, "denominator of the ratio; `default`: the estimator's own",
                       choices=(DEFAULT, "recomputed", "behavior"))
  optimizer_batches: int = option(4, "optimizer steps per rollout batch; more than 1 is off-policy",
                                  low=1)
  micro_batches: int = option(1, "micro-batches per optimizer batch; changes memory and speed only",
                              low=1)
  staleness: int = option(
      0, "iterations that the sampler's parameters are old; each keeps a copy of what is trained",
      low=0)
  overlap: bool = option(
      False, "staleness > 0: draw and verify the next batch while this one trains; same results")


@dataclasses.dataclass(frozen=True)
class ParametersConfig:
  """Which parameters are trained; the others carry no optimizer state."""

  train: str = option("all", "all; lora: adapters (and `patterns`); selected: `patterns` alone",
                      choices=("all", "lora", "selected"))
  patterns: tuple = option(
      (), "regular expressions over parameter paths such as blocks/0/attention/query")
  head_rows: tuple = option(
      (), "token ids whose rows of the output head are trained (with lora or selected)", of=int)
  lora_rank: int = option(8, "rank of an adapter", low=1)
  lora_alpha: float = option(16.0, "an adapter is scaled by lora_alpha / lora_rank", low=0.0)
  lora_targets: tuple = option(("attention/(query|key|value|out)", "mlp/(gate|up|down)"),
                               "regular expressions over the paths of adapted weights")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW after clipping by the global norm."""

  learning_rate: float = option(1e-4, "after warm-up, constant", low=0.0)
  warmup_steps: int = option(0, "linear warm-up, optimizer steps", low=0)
  b1: float = option(0.9, "decay of the first moment", low=0.0, high=1.0)
  b2: float = option(0.95, "decay of the second moment", low=0.0, high=1.0)
  weight_decay: float = option(0.0, "decoupled weight decay", low=0.0)
  max_grad_norm: float = option(1.0, "global norm above which gradients are scaled down", low=0.0)


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
  """Supervised steps on demonstrations before the first rollout; a fixed length, never stopped on
  accuracy.
  """

  steps: int = option(0, "optimizer steps", low=0)
  batch_size: int = option(64, "demonstrations per step", low=1)
  micro_batches: int = option(1, "micro-batches per step; changes memory and speed only", low=1)
  learning_rate: float = option(1e-3, "peak; cosine decay to a tenth", low=0.0)


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
  every: int = option(10, "iterations between held-out evaluations", low=1)
  samples: int = option(0,
                        "sampled completions per held-out problem beside the greedy one; 0: none",
                        low=0)
  temperature: float = option(1.0, "of the sampled completions", low=1e-3, high=100.0)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  every: int = option(10, "iterations between checkpoints", low=1)
  keep: int = option(2, "checkpoints kept; at least 2, so that a torn newest one has a predecessor",
                     low=2)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each mesh axis; `data` -1 takes what the others leave."""

  data: int = option(-1, "data-parallel replicas; -1: all remaining devices", low=-1)
  fsdp: int = option(1, "shards of parameters and optimizer state", low=1)
  tensor: int = option(1, "shards of heads, MLP width, experts and vocabulary", low=1)
  rollout: int = option(
      0, "devices, the last ones, that draw rollouts and do not train; 0: all do both", low=0)


@dataclasses.dataclass(frozen=True)
class StepConfig:
  """What `train_step` reads."""

  loss: LossConfig = LossConfig()
  micro_batches: int = 1
  parameters: ParametersConfig = ParametersConfig()


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """Sizes and rules of `rollouts.generate`: compiled into the program, unlike `types.Sampling`.

  Attributes:
    group_size: contiguous rows that share a prompt, which is prefilled once.
    max_new_tokens: completion tokens of a row at most, ids that an environment inserts included.
    window: completion tokens by which the attended cache grows.
    stop_ids: tokens that end a row.
    pad_id: fills a row after its end.
    min_new_tokens: completion tokens before which a stop token has probability 0.
  """

  group_size: int = 1
  max_new_tokens: int = 48
  window: int = 32
  stop_ids: tuple[int, ...] = (1,)
  pad_id: int = 0
  min_new_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Config:
  """One run. Jitted functions get its parts, never the whole, so that a new seed or length does not
  recompile.
  """

  seed: int = option(0, "of parameters, problems and sampling", low=0, high=2**31 - 1)
  iterations: int = option(100, "rollout batches", low=0)
  plugins: tuple = option(
      (), "files or modules imported first; they may register estimators and advantages")
  pretrained: str = option(
      "", "Hugging Face checkpoint directory to start from; it sets the model's shapes")
  model: ModelConfig = ModelConfig()
  task: TaskConfig = TaskConfig()
  rollout: RolloutConfig = RolloutConfig()
  dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
  shaping: ShapingConfig = ShapingConfig()
  estimator: EstimatorConfig = EstimatorConfig()
  advantage: AdvantageConfig = AdvantageConfig()
  aggregation: AggregationConfig = AggregationConfig()
  correction: CorrectionConfig = CorrectionConfig()
  kl: KLConfig = KLConfig()
  entropy: EntropyConfig = EntropyConfig()
  critic: CriticConfig = CriticConfig()
  vocabulary: VocabularyConfig = VocabularyConfig()
  pipo: PipoConfig = PipoConfig()
  updates: UpdateConfig = UpdateConfig()
  parameters: ParametersConfig = ParametersConfig()
  optimizer: OptimizerConfig = OptimizerConfig()
  warm_start: WarmStartConfig = WarmStartConfig()
  evaluation: EvaluationConfig = EvaluationConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  mesh: MeshConfig = MeshConfig()

  @property
  def rows(self) -> int:
    return self.rollout.prompts * self.rollout.group_size

  @property
  def row_length(self) -> int:
    return self.rollout.max_prompt_tokens + self.rollout.max_new_tokens

  @property
  def loss(self) -> LossConfig:
    """The task's `stop_ids` are still to be added."""
    rules = self.vocabulary.rules if self.vocabulary.side in ("both", "trainer") else {}
    return LossConfig(self.estimator, self.kl, self.entropy, self.rollout.temperature,
                      self.correction, self.critic if self.advantage.name == "gae" else None,
                      num_experts=self.model.num_experts,
                      min_new_tokens=self.rollout.min_new_tokens,
                      max_new_tokens=self.rollout.max_new_tokens, **rules)

  @property
  def batch(self) -> BatchConfig:
    return BatchConfig(self.rollout.group_size, self.updates.optimizer_batches, self.advantage,
                       self.aggregation, self.correction, self.kl)
