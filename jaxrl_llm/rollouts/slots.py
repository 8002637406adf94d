"""The device's side of a run: the cache of the rows in flight, and which row holds which slot."""

import collections
import dataclasses

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.models import Model, kv_cache, live_attention, row_cache
from jaxrl_llm.rollouts import decode_attention, decoding, sizes
from jaxrl_llm.rollouts.chunk import ChunkInputs, Sampled, Shared
from jaxrl_llm.rollouts.next_token import Draw, rules_on
from jaxrl_llm.rollouts.rollout_table import RolloutTable
from jaxrl_llm.rollouts.sizes import EngineConfig


class PromptStore:
  """Prompts whose cache is kept once for all rows of their group.

  Attributes:
    cache: of M prompts.
    group: [M], the group whose prompt each place holds, -1 for none.
    group_size: rows of a group.
  """

  def __init__(self, cache: row_cache.RowCache, places: int, group_size: int):
    self.cache, self.group, self.group_size = cache, np.full(places, -1), group_size

  def admit(self, live_rows, rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gives places to the prompts of `rows`, as far as there are places that no live row needs.

    Returns:
      (places that are filled anew, their groups, the leading `rows` whose prompt has a place).
    """
    group = rows // self.group_size
    live_groups = np.concatenate([live_rows // self.group_size, group[:1]])
    places = np.flatnonzero(~np.isin(self.group, live_groups))
    new = np.setdiff1d(group, self.group)[:len(places)]
    places = places[:len(new)]
    self.group[places] = new
    return places, new, rows[np.cumprod(np.isin(group, self.group)).astype(bool)]

  def maps(self, row, live) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns `rows`, `prompt` and `lane` of `chunk.Shared` for rows [S], some of them in flight.

    A row's lane is its number in its group.
    """
    group = row // self.group_size
    lane = np.where(live, row % self.group_size, 0)
    prompt = np.where(live, np.argmax(self.group == group[:, None], 1), 0)
    rows = np.zeros((len(self.group), self.group_size), np.int32)
    rows[prompt[live], lane[live]] = np.flatnonzero(live)
    return rows, prompt.astype(np.int32), lane.astype(np.int32)


class Slots:
  """Slots and cache of the rows in flight, at most S at a time.

  Attributes:
    row: [S], the row that holds the slot, or held it last; -1 before the first one.
    cache: a row for each slot.
    dtype: of its keys and values.
    batch_sizes, windows: see sizes.py.
    width: columns of a row for its own copy of its prompt; 0 if prompts are shared.
    store: shared prompts, or None.
    wave: (first, last) of the rows whose prompts are prefilled but not all admitted.
    prompt_widths: see `sizes.prompt_widths`; the full width only, if prompts are shared.
  """

  def __init__(self, table: RolloutTable, params, draw: Draw, *, model: Model, cfg: EngineConfig,
               mesh: Mesh | None):
    rows, width = table.prompts.tokens.shape
    self.table, self.mesh, self.draw = table, mesh, draw
    self.dtype = kv_cache.dtype(model.config)
    self.vocab_size = model.config.vocab_size
    kernel, side = decode_attention.KERNEL, decode_attention.heads_side_by_side(
        cfg.attention, model, width + cfg.max_new_tokens)
    attention = kernel if side else decode_attention.WINDOWED
    self.cfg = cfg = dataclasses.replace(cfg, attention=attention)
    self.programs = decoding.build(model, cfg.chunk, tuple(cfg.stop_ids), cfg.min_new_tokens > 0,
                                   mesh, bool(side))
    self.rules = rules_on(draw.sampling)
    self.params = self.programs.decode_params(params)
    self.batch_sizes = sizes.batch_sizes(cfg, rows, sizes.shards(mesh))
    self.windows = sizes.windows(cfg, width)
    self.row = np.full(self.batch_sizes[0], -1)
    self.width, self.columns = sizes.row_prompt(cfg, width), sizes.columns(cfg, width, self.dtype)
    self.cache = self.programs.empty(len(self.row), self.columns, side or 1)
    self.wave, self._prefilled = (0, 0), []
    self.store, self.prompt_widths = None, [width]
    if cfg.shared_prefix:
      places = sizes.prompt_places(cfg, rows)
      self.store = PromptStore(self.programs.empty(places, width, 1), places, cfg.group_size)
    else:
      self.prompt_widths = sizes.prompt_widths(width)
    self._column_bytes = kv_cache.column_bytes(model.config)
    windows = kv_cache.windows(model.config)
    # By window, the bytes of a column in the layers that have it.
    self._window_bytes = {window: self._column_bytes // len(windows) * count
                          for window, count in collections.Counter(windows).items()}

  def live(self) -> np.ndarray:
    """Returns [S] bool, slots whose row is in flight."""
    return (self.row >= 0) & self.table.in_flight()[self.row]

  def active(self) -> np.ndarray:
    """Returns [S] bool, slots whose row is in flight and waits for no answer."""
    return (self.row >= 0) & self.table.active()[self.row]

  # Admission.

  def admit(self) -> bool:
    """Gives free slots to queued rows; returns whether any row is in flight."""
    live = self.live()
    free = np.array([], int)
    if self.cfg.refill or not live.any():
      tokens = np.where(live, self.table.next_fed(self.row)[1], 0)
      free = by_load(live, tokens, sizes.shards(self.mesh), self.width)
    while len(free) and self.table.queued():
      if self.table.admitted == self.wave[1]:
        self._prefill()
      rows = self.table.next_rows(min(self.table.admitted + len(free), self.wave[1]))
      if not len(rows):
        continue
      if self.store is None:
        self._copy_prompts(rows, free)
      else:
        rows = self._share_prompts(rows)
      if not len(rows):
        break
      slots, free = free[:len(rows)], free[len(rows):]
      self.row[slots] = rows
      self.table.admitted += len(rows)
    return bool(self.live().any())

  def _prefill(self) -> None:
    """Prefills the next wave of prompts, enough to fill all slots, in pieces of like length.

    A short last wave repeats its last group, so that one compiled shape serves every wave.
    """
    prompts, first, rows = self.table.prompts, self.table.admitted, len(self.table.limit)
    size, width = self.cfg.group_size, prompts.tokens.shape[1]
    groups, piece = sizes.prefill_groups(self.cfg, rows, width, sizes.shards(self.mesh))
    leaders = np.minimum(first + size * np.arange(groups), rows - size)
    length = prompts.prompt_length[leaders].astype(np.int32)
    order = np.argsort(length, kind="stable") if piece < groups else np.arange(groups)
    self._prefilled = []
    for begin in range(0, groups, piece):
      members = order[np.minimum(np.arange(begin, begin + piece), groups - 1)]
      longest = length[members].max()
      columns = next(w for w in self.prompt_widths if w >= longest)
      tokens = prompts.tokens[leaders[members], :columns].astype(np.int32)
      cache = self.programs.prefill(self.params, *self._to_devices((tokens, length[members])))
      self._prefilled.append((members, cache))
    self.wave = first, min(first + size * groups, rows)

  def _copy_prompts(self, rows, free) -> None:
    """Copies each row's prompt into a free slot."""
    group, slots = (rows - self.wave[0]) // self.cfg.group_size, free[:len(rows)]
    for members, prefilled in self._prefilled:
      mask = np.isin(group, members)
      if not mask.any():
        continue
      source = np.argmax(group[mask, None] == members, 1)
      slot_args = self._to_devices((_padded(slots[mask], len(self.row)),
                                    _padded(source, len(self.row)),
                                    np.int32(mask.sum())))
      self.cache = self.programs.admit(self.cache, prefilled, *slot_args)

  def _share_prompts(self, rows) -> np.ndarray:
    """Puts missing prompts into the store; returns the leading rows whose prompt is stored."""
    store = self.store
    places, groups, rows = store.admit(self.row[self.live()], rows)
    source = groups - self.wave[0] // self.cfg.group_size
    moves = self._to_devices((_padded(places, len(store.group)), _padded(source, len(store.group)),
                              np.int32(len(groups))))
    store.cache = self.programs.admit(store.cache, self._prefilled[0][1], *moves)
    return rows

  # Decoding.

  def decode(self) -> tuple[np.ndarray, Sampled]:
    """Decodes one chunk; returns (the row of each slot that took part, what they sampled, on the
    host).
    """
    slots = self._slots()
    live, active = self.live()[slots], self.active()[slots]
    row = np.where(live, self.row[slots], 0)
    token, position = self.table.next_fed(row)
    length = position if self.store is None else self.table.cursor[row]
    columns = next(size for size in self.windows if size >= length[active].max())
    turn_inputs = self.table.pending(row, self.cfg.chunk) if self.table.inserts else (None, None)
    quota = min(self._quota(len(slots), live.sum()), active.sum())
    inputs = ChunkInputs(
        self._steps(), quota, token, position, np.where(live, length, 0),
        np.where(active, self.table.left(row), 0), self.cfg.min_new_tokens - self.table.cursor[row],
        self.table.prompts.row_id[row], *turn_inputs,
        slots=slots if len(slots) < len(self.row) else None, columns=columns)
    shared = None
    if self.store is not None:
      shared = Shared(self.store.cache, *self._to_devices(
          (self._stored_length(), *self.store.maps(row, live))))
    self.cache, sampled = self.programs.decode(
        self.params, self.cache, shared, self._to_devices(jax.tree.map(np.int32, inputs)),
        self.draw, rules=self.rules)
    sampled = jax.device_get(sampled)
    self._count(sampled, position + 1, length, columns)
    return self.row[slots], sampled

  def _slots(self) -> np.ndarray:
    """Returns the slots that decode next: all, or the smallest batch that holds the rows left."""
    live = self.live()
    size = min(size for size in self.batch_sizes if size >= live.sum())
    if self.table.queued() or size == len(live):
      return np.arange(len(live))
    return np.concatenate([np.flatnonzero(live), np.flatnonzero(~live)])[:size]

  def _stored_length(self) -> np.ndarray:
    """Returns the cached tokens of each stored prompt: all but its last."""
    leader = np.maximum(self.store.group, 0) * self.cfg.group_size
    return (self.table.prompts.prompt_length[leader] - 1).astype(np.int32)

  def _steps(self) -> int:
    """Returns the steps of the next chunk at most: no row needs more."""
    return int(min(self.cfg.chunk, self.table.left(self.row[self.active()]).max()))

  def _quota(self, size: int, live: int) -> int:
    """Returns how many rows must end for a chunk of `size` rows to end early.

    Enough rows to admit others in their place, or to reach the next smaller batch.
    """
    if self.table.queued():
      return (self.cfg.quota or max(1, size // 16)) if self.cfg.refill else live
    smaller = [batch for batch in self.batch_sizes if batch < size]
    return live - smaller[0] if smaller and live > smaller[0] else live

  def _count(self, sampled: Sampled, visible_before: np.ndarray, length: np.ndarray,
             columns: int) -> None:
    """Counts a chunk.

    Args:
      visible_before: [S], tokens that the first sampled token of each row could see.
      length: [S], columns of the cache that each row had before.
      columns: of the window.
    """
    stats, steps, new = self.table.stats, int(sampled.steps), sampled.count.astype(int)
    stats.chunks += 1
    stats.slot_steps += len(new) * steps
    places, width = 0, self.table.prompts.tokens.shape[1]
    if self.store is not None:
      places = len(self.store.group)
    stats.cache_bytes_held = (len(self.row) * self.columns + places * width) * self._column_bytes
    number = np.arange(steps)
    live, end = number < new[:, None], length[:, None] + number + 1
    block = live_attention.block_of(self.columns, self.dtype)
    for window, column_bytes in self._window_bytes.items():
      read = steps * len(new) * (kv_cache.earlier(columns, window) + self.cfg.chunk)
      if self.cfg.attention == decode_attention.KERNEL:
        first = np.maximum(end - window, 0) // block if window else 0
        read = ((-(-end // block) - first) * block * live).sum()
      stored = steps * places * kv_cache.earlier(width, window)
      visible = np.minimum(visible_before[:, None] + number, window or np.inf)
      stats.cache_bytes_read += int(read + stored) * column_bytes
      stats.cache_bytes_needed += int((visible * live).sum()) * column_bytes

  def _to_devices(self, tree):
    """Replicates a tree on each device; the compiler gives each device its rows."""
    return jax.device_put(tree, None if self.mesh is None else parallel.replicated(self.mesh))


def by_load(live: np.ndarray, tokens: np.ndarray, devices: int, prompt: int) -> np.ndarray:
  """Returns the free slots in the order in which rows take them: each is of the device with the
  fewest tokens, because a step ends with the device that reads the most.

  Args:
    live: [S] bool, slots that hold a row; S / devices slots in a row are one device's.
    tokens: [S] of each row in its columns.
    prompt: tokens that a row begins with.
  """
  device, free = np.arange(len(live)) * devices // len(live), np.flatnonzero(~live)
  load = np.bincount(device[live], tokens[live], devices)
  of_free = device[free]
  number = np.arange(len(free)) - np.searchsorted(of_free, of_free)  # among its device's
  return free[np.argsort(load[of_free] + number * prompt, kind="stable")]


def _padded(x: np.ndarray, size: int) -> np.ndarray:
  """Returns int32 of length `size`, zeros after x."""
  return np.pad(x, (0, size - len(x))).astype(np.int32)
