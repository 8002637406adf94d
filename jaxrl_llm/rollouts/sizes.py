"""The engine's config, and the sizes of the programs that follow from it."""

import dataclasses

import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.types import PromptBatch

SMALLEST = 8  # compaction ends at slots / SMALLEST rows
PIECES = 4  # parts of a wave of long prompts, sorted by length
LONG = 256  # tokens; waves of shorter prompts are not split
TILE = 128  # columns; a TPU updates a cache in place if its columns are a multiple of this


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig(SamplerConfig):
  """Sizes and rules of `engine.run`.

  Only the fields `min_new_tokens`, `stop_ids` and `max_new_tokens` change what is sampled. The
  fields of `SamplerConfig` mean the same here; `window` counts columns of the cache's ring.

  Attributes:
    slots: rows decoded at the same time; a smaller batch of rows uses fewer.
    chunk: decode steps per call of the compiled program, at most.
    refill: queued rows take the slots of ended rows between two chunks. False: all rows in flight
      end before others begin.
    compact: sizes per halving of the batch, to which rows are gathered once the queue is empty. 1:
      the half; 2: three quarters and the half; 0: the batch keeps its size, as it always does
      where several devices divide the rows. Each size compiles separate programs.
    quota: while rows are queued, a chunk ends early once this many rows have ended; 0: a sixteenth
      of the slots.
    shared_prefix: keep a prompt's cache once and let all rows of its group attend to it, instead of
      copying it to each row. A group is queued until a place for its prompt is free (see
      `prompt_places`). For one device only; see `engines.run` for several.
  """

  slots: int = 64
  chunk: int = 32
  refill: bool = True
  compact: int = 1
  quota: int = 0
  shared_prefix: bool = False


def batch_sizes(cfg: EngineConfig, rows: int, shards: int = 1) -> list[int]:
  """Returns the batches in which `rows` rows may be decoded, largest first.

  One only where several devices divide the rows: gathering rows of all devices would fetch whole
  caches, more than a device holds.
  """
  first = min(cfg.slots, -(-rows // shards) * shards)
  if shards > 1:
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


def ring_sizes(cfg: EngineConfig, rows: int, max_turns: int = 0) -> list[int]:
  """Returns the sizes of the cache's ring, in columns, smallest first.

  The ring must hold the longest row, plus up to chunk - 1 columns because a row may be admitted
  while older ones decode. A row that waits for a tool also spans what other rows write meanwhile:
  each further turn adds two chunks for that, up to the length of a row. The last size is a multiple
  of TILE if the window is one and the ring is not shorter.

  Args:
    max_turns: turns of a row at most; 0 without an environment.
  """
  columns = cfg.max_new_tokens
  if max_turns or (cfg.refill and rows > cfg.slots):
    columns += cfg.chunk - 1
  columns += min(2 * cfg.chunk * max(max_turns - 1, 0), cfg.max_new_tokens)
  if cfg.window % TILE == 0 and columns > TILE:
    columns = -(-columns // TILE) * TILE
  return [min(size, columns) for size in range(cfg.window, columns + cfg.window, cfg.window)]


def programs(cfg: EngineConfig, rows: int, shards: int = 1, max_turns: int = 0,
             prompt_width: int = 0) -> int:
  """Returns how many programs runs of `rows` rows compile at most, whatever the temperature and the
  values of the rules that are on; each other set of rules compiles S W (decode) more.

    3 (decode_params, empty) + P (prefill) + P W (admit) + S W (decode) + S (3 W - 2) (shift)
      + (S - 1) W (take)

  with S batch sizes, W ring sizes and P prompt widths, for one dtype. `empty` makes the cache and
  the store of shared prompts. Ring and batch change by one size at a time.

  Args:
    max_turns: as in `ring_sizes`.
    prompt_width: columns of the prompts.
  """
  sizes, rings = len(batch_sizes(cfg, rows, shards)), len(ring_sizes(cfg, rows, max_turns))
  widths = 1 if cfg.shared_prefix else len(prompt_widths(prompt_width))
  return (3 + widths + widths * rings + sizes * rings + sizes * (3 * rings - 2)
          + (sizes - 1) * rings)


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
