"""Every name, default, unit, range and check of a configuration value.

`configs/*.py` build an `ml_collections.ConfigDict` from `base_config()`; `from_dict` turns it into the frozen,
hashable `Config` below. `python -m jaxrl_llm.config` prints the commented listing.

Numbers of an estimator have three states. In a Python call: left out (`DEFAULT`) means the estimator's registered
default, a number is that number, `None` means no bound. In a ConfigDict, where a key cannot be left out, `None` means
the default and the string "none" means no bound.
"""

import dataclasses
import difflib
import typing
from typing import Any

from jaxrl_llm.fields import DEFAULT, ConfigError, Number, allowed, checked, number, option


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Decoder of Qwen3 shape."""

  vocab_size: int = option(32, "rows of the embedding; at least the tokenizer's size", low=2)
  width: int = option(128, "D, width of the residual stream", low=1)
  num_layers: int = option(4, "N, decoder blocks", low=1)
  num_heads: int = option(4, "H, query heads; a multiple of num_kv_heads", low=1)
  num_kv_heads: int = option(2, "K, key and value heads", low=1)
  head_dim: int = option(32, "width of one head; even, for the rotary embedding", low=2)
  mlp_width: int = option(384, "hidden width of the SwiGLU", low=1)
  rope_base: float = option(1e4, "base of the rotary frequencies", low=1.0)
  norm_epsilon: float = option(1e-6, "added to the mean square in RMSNorm", low=0.0)
  tie_head: bool = option(True, "the output head is the transposed embedding")
  scan_layers: bool = option(False, "stack the blocks and scan: small programs, slow decode on CPU")
  remat: str = option("none", "what the backward pass recomputes", choices=("none", "full", "dots"))
  compute_dtype: str = option("float32", "dtype of activations; master weights are float32",
                              choices=("float32", "bfloat16"))


@dataclasses.dataclass(frozen=True)
class TaskConfig:
  name: str = option("modular_chain", "procedural task", choices=("modular_chain",))
  num_terms: int = option(6, "digits in a chain", low=2, high=32)
  worked_share: float = option(1.0, "share of demonstrations that write every step; the others only answer",
                               low=0.0, high=1.0)
  heldout_problems: int = option(256, "held-out problems of the greedy evaluation", low=1)
  shuffle_rewards: bool = option(False, "control: permute rewards within each rollout batch")


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
  prompts: int = option(32, "prompts per iteration", low=1)
  group_size: int = option(8, "G, completions per prompt", low=1)
  max_prompt_tokens: int = option(16, "prompt part of a row, tokens", low=1)
  max_new_tokens: int = option(48, "completion part of a row, tokens; longer is truncated", low=1)
  temperature: float = option(1.0, "sampling temperature; the loss uses the same", low=1e-3, high=100.0)
  window: int = option(32, "decode steps between two growths of the attended cache", low=1)


@dataclasses.dataclass(frozen=True)
class EstimatorConfig:
  """Name of the importance-ratio estimator and the numbers it reads; the registry declares which."""

  name: str = option("ppo", "registered estimator")
  clip_low: Number = number("ratio window [1 - clip_low, 1 + clip_high]", low=0.0)
  clip_high: Number = number("ratio window [1 - clip_low, 1 + clip_high]", low=0.0)
  dual_clip: Number = number("ratio above which negative advantages get no gradient", low=1.0)
  log_low: Number = number("CTPO window in log space: -log_low * t^power", low=0.0)
  log_high: Number = number("CTPO window in log space: +log_high * t^power", low=0.0)
  log_dual: Number = number("CTPO upper bound for negative advantages: log_dual * t^power", low=0.0)
  power: Number = number("CTPO exponent of the position t", low=-4.0, high=4.0)
  cap: Number = number("truncation of a sequence ratio from above", low=0.0)
  tau_pos: Number = number("SAPO temperature where the advantage is positive", low=1e-6)
  tau_neg: Number = number("SAPO temperature elsewhere", low=1e-6)
  delta_low: Number = number("DPPO divergence beyond which a negative advantage stops pushing down", low=0.0)
  delta_high: Number = number("DPPO divergence beyond which a positive advantage stops pushing up", low=0.0)
  ratio_cap: Number = number("DPPO truncation of the token ratio", low=0.0)
  d: Number = number("CPPO budget of one token", low=0.0)
  d_b: Number = number("CPPO budget per unit of position weight", low=0.0)
  w_min: Number = number("CPPO position weight of the last token", low=0.0, high=1.0)
  k: Number = number("VESPO exponent of the ratio for positive advantages, decay for negative", low=0.0)
  lam: Number = number("VESPO decay for positive advantages, exponent of the ratio for negative", low=0.0)
  beta: Number = number("DRO weight of the squared log-ratio", low=0.0)
  cap_at_one: bool | str = option(DEFAULT, "MinPRO: the prefix minimum never exceeds a ratio of 1")


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
  name: str = option("grpo", "registered advantage")
  epsilon: float = option(1e-6, "added to the group standard deviation", low=0.0)
  ddof: int = option(1, "1: Bessel's standard deviation (verl, TRL); 0: population", low=0, high=1)


@dataclasses.dataclass(frozen=True)
class AggregationConfig:
  name: str = option("token", "weighting of tokens over the optimizer batch",
                     choices=("token", "token_sum", "sequence", "sequence_sum", "fixed"))
  fixed_length: int | None = option(None, "divisor of `fixed`, tokens; unset: rollout.max_new_tokens", low=1)


@dataclasses.dataclass(frozen=True)
class CorrectionConfig:
  """Truncated importance weights anchor / behavior."""

  level: str = option("none", "ratio that is truncated", choices=("none", "token", "sequence"))
  cap: float = option(2.0, "largest weight", low=0.0)


@dataclasses.dataclass(frozen=True)
class KLConfig:
  name: str = option("k3", "estimator of KL(policy || reference)", choices=("k1", "k2", "k3"))
  coef: float = option(0.0, "weight of the KL term in the loss", low=0.0)


@dataclasses.dataclass(frozen=True)
class EntropyConfig:
  coef: float = option(0.0, "weight of the entropy bonus in the loss", low=-100.0, high=100.0)


@dataclasses.dataclass(frozen=True)
class UpdateConfig:
  anchor: str = option(DEFAULT, "denominator of the ratio; `default`: the estimator's own",
                       choices=(DEFAULT, "recomputed", "behavior"))
  optimizer_batches: int = option(4, "optimizer steps per rollout batch; more than 1 is off-policy", low=1)
  micro_batches: int = option(1, "micro-batches per optimizer batch; changes memory and speed only", low=1)


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
  """Supervised steps on demonstrations before the first rollout; a fixed length, never stopped on accuracy."""

  steps: int = option(0, "optimizer steps", low=0)
  batch_size: int = option(64, "demonstrations per step", low=1)
  micro_batches: int = option(1, "micro-batches per step; changes memory and speed only", low=1)
  learning_rate: float = option(1e-3, "peak; cosine decay to a tenth", low=0.0)


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
  every: int = option(10, "iterations between greedy held-out evaluations", low=1)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  every: int = option(10, "iterations between checkpoints", low=1)
  keep: int = option(2, "checkpoints kept; at least 2, so that a torn newest one has a predecessor", low=2)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each mesh axis; `data` -1 takes what the others leave."""

  data: int = option(-1, "data-parallel replicas; -1: all remaining devices", low=-1)
  fsdp: int = option(1, "shards of parameters and optimizer state", low=1)
  tensor: int = option(1, "shards of heads, MLP width and vocabulary", low=1)


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """What `policy_loss` reads."""

  estimator: EstimatorConfig = EstimatorConfig()
  kl: KLConfig = KLConfig()
  entropy: EntropyConfig = EntropyConfig()
  temperature: float = 1.0


@dataclasses.dataclass(frozen=True)
class StepConfig:
  """What `train_step` reads."""

  loss: LossConfig = LossConfig()
  micro_batches: int = 1


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """What `generate` reads: compiled into the program, unlike `types.Sampling`."""

  group_size: int = 1
  max_new_tokens: int = 48
  window: int = 32
  stop_ids: tuple[int, ...] = (1,)
  pad_id: int = 0


@dataclasses.dataclass(frozen=True)
class Config:
  """One run. Jitted functions get its parts, never the whole, so that a new seed or length does not recompile."""

  seed: int = option(0, "of parameters, problems and sampling", low=0, high=2**31 - 1)
  iterations: int = option(100, "rollout batches", low=0)
  plugins: tuple = option((), "files or modules imported first; they may register estimators and advantages")
  model: ModelConfig = ModelConfig()
  task: TaskConfig = TaskConfig()
  rollout: RolloutConfig = RolloutConfig()
  estimator: EstimatorConfig = EstimatorConfig()
  advantage: AdvantageConfig = AdvantageConfig()
  aggregation: AggregationConfig = AggregationConfig()
  correction: CorrectionConfig = CorrectionConfig()
  kl: KLConfig = KLConfig()
  entropy: EntropyConfig = EntropyConfig()
  updates: UpdateConfig = UpdateConfig()
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
    return LossConfig(self.estimator, self.kl, self.entropy, self.rollout.temperature)


# --- ConfigDict in, dataclass out -----------------------------------------------------------------------------------


def _as_dict(cfg) -> dict[str, Any]:
  """Nested dict of untyped references: a wrong type then meets `from_dict`, whose message knows the range."""
  from ml_collections import config_dict  # here, so that kernels and benchmarks run without it

  out = {}
  for field in dataclasses.fields(cfg):
    item = getattr(cfg, field.name)
    if dataclasses.is_dataclass(item):
      out[field.name] = _as_dict(item)
    else:
      number_unset = item == DEFAULT and not field.metadata["choices"]
      out[field.name] = config_dict.FieldReference(None if number_unset else item, field_type=object)
  return out


def base_config():
  """ConfigDict of all keys with their defaults, for `configs/*.py` to edit."""
  from ml_collections import config_dict

  return config_dict.ConfigDict(_as_dict(Config()))


def from_dict(values, cls=Config, prefix: str = ""):
  """Frozen dataclass from a (nested) mapping.

  Raises:
    ConfigError: unknown key, wrong type, or value out of range.
  """
  if not hasattr(values, "items"):
    raise ConfigError(f"{prefix.rstrip('.')} = {values!r}: a section of keys was expected, not a value; "
                      f"its keys are {', '.join(f.name for f in dataclasses.fields(cls))}.")
  fields = {f.name: f for f in dataclasses.fields(cls)}
  types_of = typing.get_type_hints(cls)
  built = {}
  for key, item in values.items():
    if key not in fields:
      raise ConfigError(_unknown_key(prefix, key))
    if dataclasses.is_dataclass(types_of[key]):
      built[key] = from_dict(item, types_of[key], f"{prefix}{key}.")
    else:
      built[key] = checked(prefix + key, item, types_of[key], fields[key].metadata)
  return cls(**built)


def to_dict(cfg) -> dict[str, Any]:
  """Plain nested dict that `from_dict` reads back to an equal Config (for config.json)."""
  out = {}
  for field in dataclasses.fields(cfg):
    item = getattr(cfg, field.name)
    if dataclasses.is_dataclass(item):
      out[field.name] = to_dict(item)
    elif typing.get_type_hints(type(cfg))[field.name] == Number:
      out[field.name] = {DEFAULT: None, None: "none"}.get(item, item)
    else:
      out[field.name] = list(item) if isinstance(item, tuple) else item
  return out


def _all_keys(cls=Config, prefix="") -> list[str]:
  hints = typing.get_type_hints(cls)
  keys = []
  for field in dataclasses.fields(cls):
    name = prefix + field.name
    keys += _all_keys(hints[field.name], name + ".") if dataclasses.is_dataclass(hints[field.name]) else [name]
  return keys


def _unknown_key(prefix: str, key: str) -> str:
  known = _all_keys()
  full = prefix + key
  near = difflib.get_close_matches(full, known, n=1, cutoff=0.0)
  same_leaf = [k for k in known if k.rsplit(".", 1)[-1] == key]
  nearest = (same_leaf or near)[0]
  return f"unknown key {full}; nearest known key: {nearest}. `python -m jaxrl_llm.config` lists them all."


# --- checks across keys ---------------------------------------------------------------------------------------------


def check(cfg: Config) -> Config:
  """Checks on values taken together; the registries add theirs in `training/setup.py`.

  Raises:
    ConfigError: naming the keys, their values, and a change that works.
  """
  m, r, u = cfg.model, cfg.rollout, cfg.updates
  if m.num_heads % m.num_kv_heads:
    raise ConfigError(f"model.num_heads = {m.num_heads} is not a multiple of model.num_kv_heads = {m.num_kv_heads}. "
                      f"Fix: choose num_kv_heads among the divisors of {m.num_heads}.")
  if m.head_dim % 2:
    raise ConfigError(f"model.head_dim = {m.head_dim} is odd; the rotary embedding needs pairs. Fix: an even number.")
  if r.prompts % u.optimizer_batches:
    raise ConfigError(
        f"updates.optimizer_batches = {u.optimizer_batches} splits a group: rollout.prompts = {r.prompts} groups of "
        f"rollout.group_size = {r.group_size} rows do not divide into {u.optimizer_batches} batches of whole groups. "
        f"Fix: choose among {_divisors(r.prompts)}.")
  rows = cfg.rows // u.optimizer_batches
  if rows % u.micro_batches:
    raise ConfigError(f"updates.micro_batches = {u.micro_batches} does not divide the {rows} rows of an optimizer "
                      f"batch. Fix: choose among {_divisors(rows)}.")
  w = cfg.warm_start
  if w.batch_size % w.micro_batches:
    raise ConfigError(f"warm_start.micro_batches = {w.micro_batches} does not divide warm_start.batch_size = "
                      f"{w.batch_size}. Fix: choose among {_divisors(w.batch_size)}.")
  return cfg


def _divisors(n: int) -> str:
  return ", ".join(str(k) for k in range(1, n + 1) if n % k == 0)


def describe(cls=Config, prefix: str = "") -> str:
  """The commented listing: one line per key with default, range and meaning."""
  hints = typing.get_type_hints(cls)
  lines = []
  for field in dataclasses.fields(cls):
    if dataclasses.is_dataclass(hints[field.name]):
      lines += ["", f"# {field.name}", describe(hints[field.name], f"{prefix}{field.name}.")]
      continue
    choices = field.metadata["choices"]
    range_ = ", ".join(map(str, choices)) if choices else allowed(field.metadata)
    comment = field.metadata["doc"] + (f" [{range_}]" if range_ else "")
    lines.append(f"{prefix + field.name + ' = ' + repr(field.default):<44}# {comment}")
  return "\n".join(lines)


if __name__ == "__main__":
  print(describe())
