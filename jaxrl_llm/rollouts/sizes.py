"""The engine's config, and the sizes of the programs that follow from it."""

import dataclasses

import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.models import live_attention
from jaxrl_llm.rollouts import decode_attention
from jaxrl_llm.types import PromptBatch

SMALLEST = 8  # the smallest batch has slots / SMALLEST rows
PIECES = 4  # parts of a wave of long prompts, sorted by length
LONG = 256  # tokens; waves of shorter prompts are not split
TILE = 128  # columns; a TPU updates a cache in place if its columns are a multiple of this


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig(SamplerConfig):
  """Sizes and rules of `engine.run`.

  Only the fields `min_new_tokens`, `stop_ids` and `max_new_tokens` change what is sampled. The
  fields of `SamplerConfig` mean the same here; `window` is the step by which the columns that a
  chunk reads grow with the longest row.

  Attributes:
    slots: rows decoded at the same time; a smaller batch of rows uses fewer.
    chunk: decode steps per call of the compiled program, at most.
    refill: queued rows take the slots of ended rows between two chunks. False: all rows in flight
      end before others begin.
    compact: sizes per halving of the batch, in which the rows that are left decode once the queue
      is empty. 1: the half; 2: three quarters and the half; 0: the batch keeps its size, as it
      always does where several devices divide the rows. Each size compiles separate programs.
    quota: while rows are queued, a chunk ends early once this many rows have ended; 0: a sixteenth
      of the slots.
    shared_prefix: keep a prompt's cache once and let all rows of its group attend to it, instead of
      copying it to each row. A group is queued until a place for its prompt is free (see
      `prompt_places`). For one device only; see `engines.run` for several.
    attention: how a step reads the cache, see decode_attention.py.
  """

  slots: int = 64
  chunk: int = 32
  refill: bool = True
  compact: int = 1
  quota: int = 0
  shared_prefix: bool = False
  attention: str = decode_attention.AUTO


def batch_sizes(cfg: EngineConfig, rows: int, shards: int = 1) -> list[int]:
  """Returns the batches in which `rows` rows may be decoded, largest first.

  One only where several devices divide the rows: gathering rows of all devices would fetch whole
  caches, more than a device holds.
  """
  first = min(cfg.slots, -(-rows // shards) * shards)
  if shards > 1 or cfg.attention == decode_attention.KERNEL:  # the kernel passes over empty slots
    return [first]
  finer, sizes, power = 2 * cfg.compact, set(), 1 << (first - 1).bit_length()
  while cfg.compact and power * SMALLEST >= first:
    sizes |= {power - power * k // finer for k in range(cfg.compact)}
    power //= 2
  smaller = sorted((size for size in sizes if first / SMALLEST <= size < first), reverse=True)
  return [first, *smaller]


def prompt_places(cfg: EngineConfig, rows: int) -> int:
  """Returns how many prompts the store of shared prompts holds.

  Enough for full slots; about twice as many if refilled groups overlap with groups that end.
  """
  slots = min(cfg.slots, rows)
  full = -(-slots // cfg.group_size)
  aligned = full if slots % cfg.group_size == 0 else full + 1
  return min(2 * full + 1 if cfg.refill and rows > slots else aligned, rows // cfg.group_size)


def prompt_widths(width: int) -> list[int]:
  """Returns the widths at which prompts of up to `width` tokens are prefilled, smallest first."""
  if width < LONG:
    return [width]
  return sorted({min(width, -(-width // part // TILE) * TILE) for part in (4, 2)} | {width})


def prefill_groups(cfg: EngineConfig, rows: int, width: int, devices: int = 1) -> tuple[int, int]:
  """Returns (prompts of a wave, prompts of one prefill).

  A wave has a prompt for every slot. If its prompts are long, it is sorted by length and cut into
  pieces that divide over the devices, so that short prompts are not padded to the longest. Prompts
  that rows share are stored at one width, and stay in one piece.
  """
  wave = min(-(-min(cfg.slots, rows) // cfg.group_size), rows // cfg.group_size)
  if width < LONG or cfg.shared_prefix:
    return wave, wave
  return wave, min(wave, -(-wave // (PIECES * devices)) * devices)


def columns(cfg: EngineConfig, width: int, dtype) -> int:
  """Returns the columns of the engine's cache: a row's longest, and a chunk that follows it, or,
  for the kernel, whole blocks.

  Args:
    width: columns of the prompts.
    dtype: of the cache.
  """
  longest = row_prompt(cfg, width) + cfg.max_new_tokens
  if cfg.attention != decode_attention.KERNEL:
    return longest + cfg.chunk
  block = live_attention.block_of(longest, dtype)
  return -(-longest // block) * block


def row_prompt(cfg: EngineConfig, width: int) -> int:
  """Returns the columns that a row has for its prompt: none where prompts are shared."""
  return 0 if cfg.shared_prefix else width


def windows(cfg: EngineConfig, width: int) -> list[int]:
  """Returns how many columns a chunk may copy and read, smallest first: those of all prompts, and
  so many windows more. No row that goes on has max_new_tokens columns of its completion. The kernel
  has one program for all.
  """
  first = row_prompt(cfg, width)
  last = first + cfg.max_new_tokens
  if cfg.attention == decode_attention.KERNEL:
    return [last]
  return [min(size, last) for size in range(first, last - 1 + cfg.window, cfg.window)]


def shards(mesh: Mesh | None) -> int:
  """Returns the number of devices over which rows are divided."""
  return 1 if mesh is None else parallel.row_shards(mesh)


def check(cfg: EngineConfig, prompts: PromptBatch, limit: np.ndarray, mesh: Mesh | None) -> None:
  """Checks that sizes, rows and devices fit together.

  Raises:
    ConfigError: naming the value, what is allowed and the fix.
  """
  _check_ranges(cfg)
  rows = len(prompts.row_id)
  if rows % cfg.group_size:
    raise ConfigError(f"{rows} rows do not divide into groups of group_size = {cfg.group_size}. "
                      "Fix: whole groups.")
  if limit.shape != (rows,) or limit.min() < 1 or limit.max() > cfg.max_new_tokens:
    raise ConfigError(
        f"max_new has shape {limit.shape} and values {limit.min()} to {limit.max()}: allowed are "
        f"({rows},) and 1 to max_new_tokens = {cfg.max_new_tokens}. Fix: such a limit for each row."
    )
  if mesh is not None and parallel.spans_processes(mesh):
    raise ConfigError("the engine's mesh has devices of other processes. "
                      "Fix: parallel.of_process(mesh).")
  if cfg.shared_prefix and mesh is not None and mesh.size > 1:
    raise ConfigError(
        f"shared_prefix = True on {mesh.size} devices: allowed is 1. Fix: shared_prefix=False.")
  devices = shards(mesh)
  if batch_sizes(cfg, rows, devices)[0] % devices:
    raise ConfigError(f"slots = {cfg.slots} does not divide over {devices} devices. "
                      f"Fix: a multiple of {devices}.")


def _check_ranges(cfg: EngineConfig) -> None:
  for name in ("group_size", "max_new_tokens", "slots", "chunk", "window"):
    if getattr(cfg, name) < 1:
      raise ConfigError(
          f"{name} = {getattr(cfg, name)}: allowed are 1 to inf. Fix: {name}=1 or more.")
  if cfg.compact < 0:
    raise ConfigError(f"compact = {cfg.compact}: allowed are 0 to inf. Fix: compact=0, 1 or 2.")
  if cfg.quota < 0:  # no chunk would take a step
    raise ConfigError(f"quota = {cfg.quota}: allowed are 0 to inf. Fix: quota=0 or more.")
