"""What a run of the engine is asked for, the sizes that its programs take, and what it counts."""

import dataclasses

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.types import PromptBatch

SMALLEST = 8  # compaction ends at slots / SMALLEST rows


@dataclasses.dataclass(frozen=True)
class EngineConfig:
  """Sizes and rules of `run`; none but `min_new_tokens` and `stop_ids` changes what is drawn.

  Attributes:
    group_size: contiguous rows that share a prompt, which is prefilled once.
    max_new_tokens: of a row; what an environment inserts counts.
    slots: rows in flight; no more than there are rows are used.
    chunk: decode steps per call of the compiled program, at most.
    window: ring slots by which the attended cache grows.
    stop_ids: tokens that end a row.
    pad_id: fills a row behind its end.
    min_new_tokens: stop tokens have probability 0 before this many tokens of a row.
    refill: waiting rows take the slots of ended ones between chunks; else all rows in flight end
      first.
    compact: once no row waits, the rows left are gathered into smaller batches, so many for each
      halving: 1 the half, 2 three quarters and the half; each size compiles programs of its own. 0:
        never.
    quota: with waiting rows, a chunk ends early once this many rows have ended; 0: a sixteenth of
      the slots.
    shared_prefix: a prompt's cache is kept once and attended to by all rows of its group, instead
      of copied to each. A group waits while all places for prompts are taken, see `prompt_places`.
      On one device only.
  """

  group_size: int = 1
  max_new_tokens: int = 48
  slots: int = 64
  chunk: int = 32
  window: int = 32
  stop_ids: tuple[int, ...] = (1,)
  pad_id: int = 0
  min_new_tokens: int = 0
  refill: bool = True
  compact: int = 1
  quota: int = 0
  shared_prefix: bool = False


@dataclasses.dataclass
class Stats:
  """What a run did, counted on the host.

  Attributes:
    slot_steps: decode steps times batch rows, whether a row was in the slot or not.
    useful_steps: those that drew a token, or fed one that an environment inserted, for the first
      time.
    cache_bytes_read: keys and values that attention read, slots that hold nothing for a row
      included.
    cache_bytes_needed: those of the tokens that a row's draws could see, row by row; shared prompts
      are read less.
    cache_bytes_held: the largest cache, shared prompts included.
    prefill_tokens: prompt positions put through the network, padding included.
    chunks: calls of the decode program.
    dropped_tokens: drawn behind the end of a turn.
    replayed_steps: that fed again what a row had lost, see `Turns.make_room`.
    tool_calls, tool_seconds: steps of the environment, and the sum of their wall-clock times.
  """

  slot_steps: int = 0
  useful_steps: int = 0
  cache_bytes_read: int = 0
  cache_bytes_needed: int = 0
  cache_bytes_held: int = 0
  prefill_tokens: int = 0
  chunks: int = 0
  dropped_tokens: int = 0
  replayed_steps: int = 0
  tool_calls: int = 0
  tool_seconds: float = 0.0

  @property
  def waste(self) -> float:
    """Share of slot-steps on ended or empty slots."""
    return 1 - self.useful_steps / max(1, self.slot_steps)


def batch_sizes(cfg: EngineConfig, rows: int, shards: int = 1) -> list[int]:
  """Batches that a run of `rows` rows may decode in, largest first; each divides over the devices.
  """
  first = min(cfg.slots, -(-rows // shards) * shards)
  finer, sizes, power = 2 * cfg.compact, set(), 1 << (first - 1).bit_length()
  while cfg.compact and power * SMALLEST >= first:
    sizes |= {power - power * k // finer for k in range(cfg.compact)}
    power //= 2
  fits = lambda size: first / SMALLEST <= size < first and size % shards == 0
  return [first, *filter(fits, sorted(sizes, reverse=True))]


def prompt_places(cfg: EngineConfig, rows: int) -> int:
  """Prompts that the store holds: those of full slots, twice where groups end one by one and others
  follow.
  """
  slots = min(cfg.slots, rows)
  full = -(-slots // cfg.group_size)
  aligned = full if slots % cfg.group_size == 0 else full + 1
  return min(2 * full + 1 if cfg.refill and rows > slots else aligned, rows // cfg.group_size)


def ring_sizes(cfg: EngineConfig, rows: int, max_turns: int = 0) -> list[int]:
  """Ring sizes, smallest first; max_turns: of an environment's rows, 0 without one.

  Rows of different ages need up to a chunk more than the longest row; a row that waited, what
  others wrote meanwhile. For each turn, two chunks are held for that, up to the length of a row.
  """
  most = cfg.max_new_tokens + (cfg.chunk - 1 if max_turns or
                               (cfg.refill and rows > cfg.slots) else 0)
  most += min(2 * cfg.chunk * max(max_turns - 1, 0), cfg.max_new_tokens)
  return [min(size, most) for size in range(cfg.window, most + cfg.window, cfg.window)]


def programs(cfg: EngineConfig, rows: int, shards: int = 1, max_turns: int = 0) -> int:
  """Most programs that runs of `rows` rows with one prompt width and dtype compile, whatever the
  sampling values.

    4 (prepare, prefill, empty) + W (admit) + S W (decode) + S (3 W - 2) (shift) + (S - 1) W (take)

  with S batch sizes and W ring sizes; `empty` makes the cache, and the store of shared prompts.
  Ring and batch change by one size at a time. max_turns: as in `ring_sizes`.
  """
  sizes, rings = len(batch_sizes(cfg, rows, shards)), len(ring_sizes(cfg, rows, max_turns))
  return 4 + rings + sizes * rings + sizes * (3 * rings - 2) + (sizes - 1) * rings


def check(cfg: EngineConfig, host: PromptBatch, limit: np.ndarray, mesh: Mesh | None) -> None:
  """Sizes fit together.

  Raises:
    ConfigError: naming the value, what is allowed and the fix.
  """
  for name in ("group_size", "max_new_tokens", "slots", "chunk", "window"):
    if getattr(cfg, name) < 1:
      raise ConfigError(
          f"{name} = {getattr(cfg, name)}: allowed are 1 to inf. Fix: {name}=1 or more.")
  if cfg.compact < 0:
    raise ConfigError(f"compact = {cfg.compact}: allowed are 0 to inf. Fix: compact=0, 1 or 2.")
  if cfg.quota < 0:  # no chunk would take a step
    raise ConfigError(f"quota = {cfg.quota}: allowed are 0 to inf. Fix: quota=0 or more.")
  rows = len(host.row_id)
  if rows % cfg.group_size:
    raise ConfigError(
        f"{rows} rows do not divide into groups of group_size = {cfg.group_size}. Fix: whole "
        "groups."
    )
  if limit.shape != (rows,) or limit.min() < 1 or limit.max() > cfg.max_new_tokens:
    raise ConfigError(
        f"max_new has shape {limit.shape} and values {limit.min()} to {limit.max()}: allowed are "
        f"({rows},) and 1 to max_new_tokens = {cfg.max_new_tokens}. Fix: such a limit for each row."
    )
  if jax.process_count() > 1:
    raise ConfigError(
        f"the engine serves one process, there are {jax.process_count()}. Fix: rollouts.generate.")
  parts = shards(mesh)
  if cfg.shared_prefix and mesh is not None and mesh.size > 1:
    raise ConfigError(
        f"shared_prefix = True on {mesh.size} devices: allowed is 1. Fix: shared_prefix=False.")
  if batch_sizes(cfg, rows, parts)[0] % parts:
    raise ConfigError(
        f"slots = {cfg.slots} does not divide over {parts} devices. Fix: a multiple of {parts}.")


def shards(mesh: Mesh | None) -> int:
  """Devices that rows are divided over."""
  return 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]
