"""The other sections of a run, and the root `Config`."""

import dataclasses
import math
from typing import ClassVar

from jaxrl_llm import registry
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
  TeacherConfig,
  TermConfig,
  VocabularyConfig,
)
from jaxrl_llm.config.rollout import (
  HERE,
  DynamicSamplingConfig,
  RolloutConfig,
  RolloutFilesConfig,
  ServerConfig,
)
from jaxrl_llm.config.task import (
  EnvironmentConfig,
  EvaluationSetConfig,
  RewardConfig,
  TaskConfig,
  ToolConfig,
)
from jaxrl_llm.fields import DEFAULT, option, sections, when
from jaxrl_llm.registry import ADVANTAGES, Choice, Combination, Table

STEPS, DEMONSTRATED = when("warm_start.steps"), (when("warm_start.steps"), when(".path"))
MTP = when("has_mtp", text="a loss term of the module that predicts two tokens ahead")
BIN_TILE, LONG_ROW = 128, 1024  # tokens; kernels of attention want long rows in full tiles
SAMPLED = when("samples_heldout", text="evaluation.samples, or samples of a set, above 0")
PARTIAL, LORA = when(".train", "lora", "selected"), when(".train", "lora")


@dataclasses.dataclass(frozen=True, init=False)
class ShapingConfig(Choice):
  """Changes to the verified reward, over complete groups."""

  name: str = option("none", "reward rule: shorter is better (grpo_lambda), or 1 and -1 (signed)")
  overlong_buffer: int = option(0, "tokens before the length limit over which a penalty grows; 0: "
                                "none", low=0)
  overlong_factor: float = option(1.0, "penalty at the limit", low=0.0,
                                  when=when(".overlong_buffer"))
  mask_truncated: bool = option(False, "drops completions that hit the length limit")
  table: ClassVar[Table] = registry.SHAPINGS


@dataclasses.dataclass(frozen=True, init=False)
class TransformConfig(Choice):
  """An update transform and its hyperparameters: `TransformConfig("name", number=1.0)`."""

  name: str = option("none", "update transforms, comma-separated (training/transforms.py)")
  table: ClassVar[Combination] = registry.TRANSFORMS


@dataclasses.dataclass(frozen=True)
class UpdateConfig:
  """The split of a rollout batch into optimizer steps."""

  anchor: str = option(DEFAULT, "denominator of the ratio: recomputed (the policy at the start of "
                       "the update phase), behavior (what the sampler computed) or interpolated "
                       "(between both by the age of each token, without a pass, see "
                       "objective/anchor.py); default: the estimator's own",
                       choices=(DEFAULT, "recomputed", "behavior", "interpolated"))
  optimizer_batches: int = option(4, "optimizer steps per rollout batch; more than 1 is off-policy",
                                  low=1)
  micro_batches: int = option(1, "micro-batches per optimizer batch; changes memory and speed only",
                              low=1, when=when(".token_budget", 0))
  token_budget: int = option(0, "packs rows, up to this many tokens per micro-batch and device, at "
                             "least a row's; changes memory and speed only. 0: rows are padded",
                             low=0)
  shared_prompts: bool = option(False, "computes the prompt of a group once, followed by as many "
                                "completions as fit into the budget; changes memory and speed only",
                                when=when(".token_budget"))
  staleness: int = option(0, "iterations between the sampler's parameters and the current ones; "
                          "each keeps a copy of the trained parameters", low=0)
  in_flight: bool = option(
      False, "trains on the groups that end first; with as many again in the making, the other "
      "completions continue under the new weights (runs/in_flight.py)",
      when=(when("rollout.slots"), when(".staleness", 0), when("dynamic_sampling.enabled", False),
            when("rollout.engine_per_device", False), when("mesh.rollout", 0),
            when("rollout.backend", DEFAULT, "engine")))
  overlap: bool = option(False, "samples and verifies the next batch while this one trains; the "
                         "results stay the same", when=when(".staleness"))


@dataclasses.dataclass(frozen=True)
class ParametersConfig:
  """The trained parameters; the others have no optimizer state."""

  train: str = option("all", "all; lora: adapters (and `patterns`); selected: only `patterns`",
                      choices=("all", "lora", "selected"))
  patterns: tuple = option((), "regular expressions over parameter paths such as "
                           "blocks/0/attention/query", when=PARTIAL)
  head_rows: tuple = option((), "token ids whose rows of the output head are trained", of=int,
                            when=PARTIAL)
  lora_rank: int = option(8, "rank of an adapter", low=1, when=LORA)
  lora_alpha: float = option(16.0, "scales an adapter by lora_alpha / lora_rank", low=1e-9,
                             when=LORA)
  lora_targets: tuple = option(("attention/(query|key|value|out)", "mlp/(gate|up|down)"),
                               "regular expressions over the paths of adapted weights", when=LORA)


@dataclasses.dataclass(frozen=True, init=False)
class OptimizerConfig(Choice):
  """The optimizer after clipping by the global norm: `OptimizerConfig("adamw", b2=0.99)`."""

  name: str = option("adamw", "optimizer (training/optimizers.py): adamw, adafactor, or any of "
                     "optax or optax.contrib, such as muon or lion")
  learning_rate: float = option(1e-4, "learning rate, constant after the warm-up", low=0.0)
  warmup_steps: int = option(0, "linear warm-up, optimizer steps", low=0)
  weight_decay: float = option(0.0, "decoupled weight decay", low=0.0)
  max_grad_norm: float = option(1.0, "global norm above which gradients are scaled down", low=1e-9)
  table: ClassVar[Table] = registry.OPTIMIZERS


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
  """Supervised steps on demonstrations before the first rollout."""

  steps: int = option(0, "optimizer steps", low=0)
  path: str = option("", "file of demonstrations, as task.data.path; empty: the task's own",
                     when=STEPS)
  split: str = option("train", "split of a folder or hub name", when=DEMONSTRATED)
  mapping: str = option("auto", "as task.data.mapping; auto: the columns below", when=DEMONSTRATED)
  prompt_column: str = option("problem", "column of the question", when=DEMONSTRATED)
  completion_column: str = option("completion", "column of the worked completion",
                                  when=DEMONSTRATED)
  batch_size: int = option(64, "demonstrations per step", low=1, when=STEPS)
  micro_batches: int = option(1, "micro-batches per step; changes memory and speed only", low=1)
  learning_rate: float = option(1e-3, "peak; cosine decay to a tenth", low=0.0, when=STEPS)
  mtp_coef: float = option(0.3, "weight of the cross-entropy of the module that predicts two "
                           "tokens ahead; its gradient reaches the trunk", low=0.0,
                           when=(when("warm_start.steps"), MTP))


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
  """Held-out evaluations during the run."""

  every: int = option(10, "iterations between held-out evaluations", low=1)
  samples: int = option(0, "sampled completions per held-out problem, besides the greedy one",
                        low=0)
  temperature: float = option(1.0, "of the sampled completions", low=1e-3, high=100.0,
                              when=SAMPLED)
  patience: int = option(0, "evaluations without a new best one (checkpoint.best) after which the "
                         "run ends; 0: it never ends early", low=0, when=when("checkpoint.best"))
  sets: tuple = sections(EvaluationSetConfig, "further held-out problems from files, by name; a "
                         "set's metrics are eval/<name>/accuracy and so on")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """Checkpoints of the full run."""

  every: int = option(10, "iterations between checkpoints", low=1)
  keep: int = option(2, "checkpoints kept; at least 2, so that a torn newest one has a predecessor",
                     low=2)
  best: str = option("eval/accuracy", "metric of the evaluation whose highest value so far has its "
                     "parameters kept in best/; -eval/length: the lowest; none: off")


@dataclasses.dataclass(frozen=True, init=False)
class WriterConfig(Choice):
  """Metric writers besides metrics.jsonl, which always has all metrics."""

  name: str = option("tensorboard", "writers of copies, comma-separated; none: only metrics.jsonl")
  table: ClassVar[Table] = registry.METRIC_WRITERS


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each mesh axis."""

  data: int = option(-1, "data-parallel replicas; -1: all remaining devices", low=-1)
  fsdp: int = option(1, "shards of parameters and optimizer state", low=1)
  tensor: int = option(1, "shards of heads, MLP width, experts and vocabulary", low=1)
  rollout: int = option(0, "devices, the last ones, that only sample; 0: all sample and train",
                        low=0, when=HERE)
  sequence: int = option(1, "shards of a row's tokens where it is trained or scored", low=1)


@dataclasses.dataclass(frozen=True)
class StepConfig:
  """Options of `train_step`."""

  loss: LossConfig = LossConfig()
  micro_batches: int = 1
  parameters: ParametersConfig = ParametersConfig()
  transform: TransformConfig | None = None


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
  """One run.

  Jitted functions get sections of it, never all of it, so that a new seed does not recompile.
  """

  seed: int = option(0, "seed of parameters, problems and sampling", low=0, high=2**31 - 1)
  iterations: int = option(100, "rollout batches", low=0)
  plugins: tuple = option((), "files or modules, imported before any name is looked up; they may "
                          "register methods; several are separated by commas")
  profile: tuple = option((), "iterations that jax.profiler traces into profile/, such as 3,4",
                          of=int)
  pretrained: str = option("", "Hugging Face checkpoint directory, GGUF file, adapter of PEFT or "
                           "hub name to start from; it sets the model's shapes")
  model: ModelConfig = ModelConfig()
  task: TaskConfig = TaskConfig()
  reward: RewardConfig = RewardConfig()
  tool: ToolConfig = ToolConfig()
  environment: EnvironmentConfig = EnvironmentConfig()
  rollout: RolloutConfig = RolloutConfig()
  rollouts: RolloutFilesConfig = RolloutFilesConfig()
  server: ServerConfig = ServerConfig()
  dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
  shaping: ShapingConfig = ShapingConfig()
  estimator: EstimatorConfig = EstimatorConfig()
  advantage: AdvantageConfig = AdvantageConfig()
  aggregation: AggregationConfig = AggregationConfig()
  correction: CorrectionConfig = CorrectionConfig()
  kl: KLConfig = KLConfig()
  teacher: TeacherConfig = TeacherConfig()
  entropy: EntropyConfig = EntropyConfig()
  critic: CriticConfig = CriticConfig()
  term: TermConfig = TermConfig()
  vocabulary: VocabularyConfig = VocabularyConfig()
  transform: TransformConfig = TransformConfig()
  updates: UpdateConfig = UpdateConfig()
  parameters: ParametersConfig = ParametersConfig()
  optimizer: OptimizerConfig = OptimizerConfig()
  warm_start: WarmStartConfig = WarmStartConfig()
  evaluation: EvaluationConfig = EvaluationConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  writer: WriterConfig = WriterConfig()
  mesh: MeshConfig = MeshConfig()

  @property
  def rows(self) -> int:
    """Returns the rows of a rollout batch."""
    return self.rollout.rows

  @property
  def row_length(self) -> int:
    """Returns the tokens of a row, prompt and completion."""
    return self.rollout.row_length

  @property
  def bin_tokens(self) -> int:
    """Returns the tokens of a bin that rows are packed into.

    They are the tokens of the longest row or, with shared prompts, of a group as far as it is
    within the budget; rounded up to tiles where that is long.
    """
    tile = math.lcm(BIN_TILE if self.row_length >= LONG_ROW else 1, self.mesh.sequence)
    tiles = -(-self.row_length // tile)
    if self.updates.shared_prompts:
      r = self.rollout
      group = r.max_prompt_tokens + r.group_size * (r.max_new_tokens + 1)
      tiles = max(tiles, min(-(-group // tile), self.updates.token_budget // tile))
    return tiles * tile

  @property
  def has_critic(self) -> bool:
    """Returns whether the advantage needs values, so that a value head is trained."""
    entry = ADVANTAGES[self.advantage.name]
    return "values" in entry.required(ADVANTAGES.numbers(self.advantage, strict=False))

  @property
  def samples_heldout(self) -> bool:
    """Returns whether completions of any held-out problem are sampled."""
    return self.evaluation.samples > 0 or any(set_cfg.samples
                                              for _, set_cfg in self.evaluation.sets)

  @property
  def reads_teacher(self) -> bool:
    """Returns whether the advantage or a loss term reads the teacher's log-probs."""
    entry = ADVANTAGES[self.advantage.name]
    needs = entry.required(ADVANTAGES.numbers(self.advantage, strict=False))
    return "teacher_log_probs" in needs.union(self.term_columns)

  @property
  def has_mtp(self) -> bool:
    """Returns whether a loss term trains the module that predicts two tokens ahead."""
    return any("mtp_log_probs" in entry.stats
               for entry in self.term.table.parts(self.term.name).values())

  @property
  def loss(self) -> LossConfig:
    """Returns what the loss reads, without the task's `stop_ids`."""
    rules = self.vocabulary.rules if self.vocabulary.side in ("both", "trainer") else {}
    return LossConfig(self.estimator, self.kl, self.entropy, self.rollout.temperature,
                      self.correction, self.critic if self.has_critic else None,
                      num_experts=self.model.num_experts,
                      min_new_tokens=self.rollout.min_new_tokens,
                      max_new_tokens=self.rollout.max_new_tokens,
                      term=self.term if self.term.name != "none" else None, **rules)

  @property
  def step(self) -> StepConfig:
    """Returns what an update reads, without the task's `stop_ids`."""
    transform = self.transform if self.transform.name != "none" else None
    return StepConfig(self.loss, self.updates.micro_batches, self.parameters, transform)

  @property
  def batch(self) -> BatchConfig:
    """Returns what `optimizer_batches` reads."""
    # An interpolated anchor moves with the policy: the loss finds its correction.
    correction = (CorrectionConfig() if self.updates.anchor == "interpolated" else self.correction)
    return BatchConfig(self.rollout.group_size, self.updates.optimizer_batches, self.advantage,
                       self.aggregation, correction, self.kl, self.term_columns)

  @property
  def term_columns(self) -> tuple[str, ...]:
    """Returns the columns with a pass that loss terms, the estimator and update transforms read,
    sorted.
    """
    parts = self.term.table.parts(self.term.name).values()
    transforms = self.transform.table.parts(self.transform.name).values()
    table = self.estimator.table
    of_estimator = table[self.estimator.name].required(table.numbers(self.estimator))
    passes = of_estimator & set(registry.COLUMNS.names())
    of_transforms = (getattr(entry.function, "columns", frozenset()) for entry in transforms)
    return tuple(sorted(passes.union(*(entry.columns for entry in parts), *of_transforms)))
