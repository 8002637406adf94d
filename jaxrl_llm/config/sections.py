"""Sections of the updates, the warm start, the mesh and the writers."""

import dataclasses
from typing import ClassVar

from jaxrl_llm import registry
from jaxrl_llm.config.objective import LossConfig
from jaxrl_llm.config.rollout import HERE
from jaxrl_llm.fields import DEFAULT, ConfigError, divisors, option, when
from jaxrl_llm.registry import Choice, Combination, Table

STEPS, DEMONSTRATED = when("warm_start.steps"), (when("warm_start.steps"), when(".path"))
MTP = when("has_mtp", text="a loss term of the module that predicts two tokens ahead")
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

  def check(self, cfg) -> None:
    """Refuses a penalty that would begin before the completion."""
    limit = cfg.rollout.max_new_tokens
    if self.overlong_buffer >= limit:
      raise ConfigError(
          f"shaping.overlong_buffer = {self.overlong_buffer}: the soft penalty begins that many "
          f"tokens before rollout.max_new_tokens = {limit}. Fix: choose 0 to {limit - 1}.")


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
                             low=0, auto=True)
  shared_prompts: bool = option(False, "computes the prompt of a group once, followed by as many "
                                "completions as fit into the budget; changes memory and speed only",
                                when=when(".token_budget"), auto=True)
  staleness: int = option(0, "iterations between the sampler's parameters and the current ones; "
                          "each keeps a copy of the trained parameters", low=0, high=10**4)
  replay: int = option(0, "largest age of a batch's groups, iterations (runs/replay.py); 0: all "
                       "are new", low=0, high=10**4, when=when(".in_flight", False))
  replay_rule: str = option("uniform", "how they are drawn: uniform; recency, replay_decay^age; "
                            "advantage, in proportion to the group's mean |R - mean R|",
                            choices=("uniform", "recency", "advantage"), when=when(".replay"))
  replay_decay: float = option(0.5, "weight of a group against one that is an iteration younger",
                               low=1e-3, high=1.0, when=when(".replay_rule", "recency"))
  in_flight: bool = option(
      False, "trains on the groups that end first; with as many again in the making, the other "
      "completions continue under the new weights (runs/in_flight.py)",
      when=(when("rollout.slots"), when(".staleness", 0), when("dynamic_sampling.enabled", False),
            when("rollout.engine_per_device", False), when("mesh.rollout", 0),
            when("rollout.backend", DEFAULT, "engine")))
  overlap: bool = option(False, "samples and verifies the next batch while this one trains; the "
                         "results stay the same", when=when(".staleness"))

  def check(self, cfg) -> None:
    """Refuses optimizer batches that split a group, micro-batches that split a row, and bins that
    hold no row.
    """
    r, budget = cfg.rollout, self.token_budget
    if r.prompts % self.optimizer_batches:
      raise ConfigError(
          f"updates.optimizer_batches = {self.optimizer_batches} splits a group: rollout.prompts = "
          f"{r.prompts} groups of rollout.group_size = {r.group_size} rows do not divide into "
          f"{self.optimizer_batches} batches of whole groups. Fix: choose among "
          f"{divisors(r.prompts)}.")
    rows = r.rows // self.optimizer_batches
    if self.replay and "reward_parts" in cfg.advantage.needs:
      raise ConfigError(f"updates.replay = {self.replay} with {cfg.advantage.name!r}: the parts of "
                        "a reward are not kept. Fix: updates.replay=0, or another advantage.")
    if rows % self.micro_batches:
      raise ConfigError(
          f"updates.micro_batches = {self.micro_batches} does not divide the {rows} rows of an "
          f"optimizer batch. Fix: choose among {divisors(rows)}.")
    if 0 < budget < cfg.bin_tokens:  # a bin is larger only where that is within the budget
      raise ConfigError(
          f"updates.token_budget = {budget}: a row of rollout.max_prompt_tokens + "
          f"rollout.max_new_tokens needs {cfg.bin_tokens}. Fix: 0, which packs nothing, or "
          f"{cfg.bin_tokens} or more.")


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
  learning_rate: float = option(1e-4, "learning rate after the warm-up; auto: by what is "
                                "trained", low=0.0, auto=True)
  warmup_steps: int = option(0, "linear warm-up, optimizer steps", low=0)
  decay_steps: int = option(0, "then linear decay to a tenth, optimizer steps; 0: none", low=0)
  weight_decay: float = option(0.0, "decoupled weight decay", low=0.0)
  max_grad_norm: float = option(1.0, "global norm above which gradients are scaled down", low=1e-9)
  table: ClassVar[Table] = registry.OPTIMIZERS


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
  """Supervised steps on demonstrations before the first rollout."""

  steps: int = option(0, "optimizer steps; auto: 200 for a network that begins with random "
                      "weights, 0 for a checkpoint", low=0, auto=True)
  path: str = option("", "file of demonstrations, as task.data.path; empty: the task's own",
                     when=STEPS)
  split: str = option("train", "split of a folder or hub name", when=DEMONSTRATED)
  mapping: str = option("auto", "as task.data.mapping; auto: the columns below", when=DEMONSTRATED)
  prompt_column: str = option("problem", "column of the question", when=DEMONSTRATED)
  completion_column: str = option("completion", "column of the worked completion",
                                  when=DEMONSTRATED)
  # Of a warm start that is switched off they are no error, so that steps=0 is enough.
  batch_size: int = option(64, "demonstrations per step", low=1, high=10**6)
  micro_batches: int = option(1, "micro-batches per step; changes memory and speed only", low=1)
  learning_rate: float = option(1e-3, "peak; cosine decay to a tenth", low=0.0)
  mtp_coef: float = option(0.3, "weight of the cross-entropy of the module that predicts two "
                           "tokens ahead; its gradient reaches the trunk", low=0.0,
                           when=(when("warm_start.steps"), MTP))

  def check(self, cfg) -> None:
    """Refuses micro-batches that split a demonstration."""
    del cfg
    if self.batch_size % self.micro_batches:
      raise ConfigError(
          f"warm_start.micro_batches = {self.micro_batches} does not divide warm_start.batch_size "
          f"= {self.batch_size}. Fix: choose among {divisors(self.batch_size)}.")


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
    routing: whether the experts of each token are recorded.
  """

  group_size: int = 1
  max_new_tokens: int = 48
  window: int = 32
  stop_ids: tuple[int, ...] = (1,)
  pad_id: int = 0
  min_new_tokens: int = 0
  routing: bool = False
