"""Refuses sizes whose arrays cannot exist on the machine, before minutes pass without a line.

Only what a run certainly holds is counted, so that nothing is refused that could run.
`experiments/plan.py` computes what a run needs in full.
"""

import decimal
import os

import jax

from jaxrl_llm.config import (
  ConfigError,
  EvaluationConfig,
  ModelConfig,
  ParametersConfig,
  RolloutConfig,
  WarmStartConfig,
)
from jaxrl_llm.models import trainable
from jaxrl_llm.parallel import processes

WORD = 4  # bytes of an int32 or f32
PROBLEM = 400  # bytes of a held-out problem in Python, at least
LAYER = 20_000  # bytes of a layer's part of one program, before it is compiled, at least
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def check(model: ModelConfig | None, rollout: RolloutConfig, evaluation: EvaluationConfig,
          heldout: int, staleness: int) -> None:
  """Compares the bytes of parameters, rows and problems with the memory of devices and hosts.

  Args:
    model: None: a checkpoint sets the shapes.
    heldout: problems.
    staleness: copies of all parameters in addition to the current ones.

  Raises:
    ConfigError: naming the largest of the keys that a need follows from, and both sizes.
  """
  _refuse(needs(model, rollout, evaluation, max(heldout, 0), staleness))


def check_pretrained(model: ModelConfig, path: str) -> None:
  """As `check`, of the network that a checkpoint says it has.

  Raises:
    ConfigError: naming the checkpoint and the largest of its sizes.
  """
  try:
    _refuse(model_arrays(model))
  except ConfigError as error:
    raise ConfigError(f"pretrained = {path!r}, config.json: {error}") from error


def check_warm_start(cfg: WarmStartConfig, row_length: int) -> None:
  """As `check`, of the rows of a step of the warm start.

  Raises:
    ConfigError: naming the batch, and both sizes.
  """
  if cfg.steps:
    _refuse([("the rows of a step of the warm start", cfg.batch_size * row_length * (WORD + 1),
              {"warm_start.batch_size": cfg.batch_size})])


def check_adapters(cfg: ParametersConfig, shapes) -> None:
  """As `check`, of the adapters of `cfg` on parameters of these shapes.

  Raises:
    ConfigError: naming the rank, and both sizes.
  """
  if cfg.train == "lora":
    trained, _ = jax.eval_shape(lambda params: trainable.split(params, cfg, jax.random.key(0)),
                                shapes)
    size = sum(leaf.size for leaf in jax.tree.leaves(trained["lora"])) * WORD
    _refuse([("the adapters", size, {"parameters.lora_rank": cfg.lora_rank})])


def _refuse(needs: list[tuple[str, int, dict[str, int]]]) -> None:
  """Compares `needs` with the memory of devices and hosts."""
  available = host_bytes() * processes.count() + device_bytes()
  for what, need, keys in needs:
    if need > available:
      key, value = max(keys.items(), key=lambda pair: pair[1])
      raise ConfigError(
          f"{key} = {value}: {what} need at least {text(need)}, and devices and hosts of this run "
          f"have {text(available)} of memory in all. Fix: a smaller {' or '.join(keys)}.")


def needs(m: ModelConfig | None, r: RolloutConfig, e: EvaluationConfig, heldout: int,
          staleness: int) -> list[tuple[str, int, dict[str, int]]]:
  """Returns the arrays that every run holds: (name, bytes, the keys that set its size and their
  values); arguments as of `check`.
  """
  samples, row_length = max(e.samples, 1), r.max_prompt_tokens + r.max_new_tokens
  rows = {f"rollout.{name}": getattr(r, name)
          for name in ("prompts", "group_size", "max_prompt_tokens", "max_new_tokens")}
  # Tokens, mask and log-probs of a rollout batch.
  arrays = [("the rows of a rollout batch",
             r.prompts * r.group_size * row_length * (2 * WORD + 1), rows),
            ("the held-out problems", heldout * PROBLEM, {"task.heldout_problems": heldout}),
            ("the sampled completions of the held-out problems",
             heldout * samples * row_length * 2 * WORD,
             {"evaluation.samples": e.samples, "task.heldout_problems": heldout,
              "rollout.max_new_tokens": r.max_new_tokens})]
  if m is not None:
    arrays = model_arrays(m) + arrays
    arrays.append(("the parameters of earlier iterations", parameter_count(m) * WORD * staleness,
                   {"updates.staleness": staleness}))
  return arrays


def model_arrays(m: ModelConfig) -> list[tuple[str, int, dict[str, int]]]:
  """As `needs`, of only a network."""
  names = ["vocab_size", "width", "num_layers", "num_heads", "head_dim", "mlp_width"]
  names += ["num_experts", "expert_width"] if m.num_experts else []
  arrays = [("the parameters", parameter_count(m) * WORD,
             {f"model.{name}": getattr(m, name) for name in names})]
  if not m.scan_layers:
    arrays.append(("the programs of layers one by one", m.num_layers * LAYER,
                   {"model.num_layers": m.num_layers}))
  return arrays


def parameter_count(m: ModelConfig) -> int:
  """Returns the number of entries of a network's matrices."""
  attention = m.width * m.head_dim * (2 * m.num_heads + 2 * m.num_kv_heads)
  dense = len(m.dense_layers) if m.num_experts else m.num_layers
  experts = m.num_experts * m.width * (3 * m.expert_width + 1)
  return (m.vocab_size * m.width + m.num_layers * attention + dense * 3 * m.width * m.mlp_width
          + (m.num_layers - dense) * experts)


def host_bytes() -> int:
  """Returns the memory of this host, without what it could swap."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_bytes() -> int:
  """Returns the memory of all devices that say how much they have; a CPU's is the host's."""
  limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()
            if device.platform != "cpu"]
  return sum(limits) * processes.count()


def text(count: int) -> str:
  """Returns a number of bytes in the largest unit that leaves 1 or more."""
  power = min((max(count, 1).bit_length() - 1) // 10, len(UNITS) - 1)
  return f"{decimal.Decimal(count) / 1024**power:.3g} {UNITS[power]}"  # a float has not all digits
