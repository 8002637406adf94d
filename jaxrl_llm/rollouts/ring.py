"""The device's side of a run: the cache of the rows in flight, and which row holds which slot.

A slot is one row of the batch. The cache has the prompts' columns and after them a ring, of which
all slots write the same column at the same time (see decoding.py).
"""

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.rollouts import decoding, sizes
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

  def __init__(self, cache: kv_cache.KVCache, places: int, group_size: int):
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
    """Returns `rows`, `prompt` and `lane` of `chunk.Shared` for rows [S], of which some live.

    A row's lane is its number in its group.
    """
    group = row // self.group_size
    lane = np.where(live, row % self.group_size, 0)
    prompt = np.where(live, np.argmax(self.group == group[:, None], 1), 0)
    rows = np.zeros((len(self.group), self.group_size), np.int32)
    rows[prompt[live], lane[live]] = np.flatnonzero(live)
    return rows, prompt.astype(np.int32), lane.astype(np.int32)


class Ring:
  """Slots and cache of the rows in flight, at most S at a time.

  Attributes:
    row: [S], the row that holds the slot, or held it last; -1 before the first one.
    start: [S], the ring column that the slot's row wrote first.
    cache: cache of the rows in their slots.
    columns: of the ring; one of `ring_sizes`, which are ordered from the smallest.
    used: ring columns that have been written.
    width: columns before the ring, for a row's own copy of its prompt; 0 if prompts are shared.
    store: shared prompts, or None.
    wave: (first, last) of the rows whose prompts are prefilled but not all admitted.
    prompt_widths: see `sizes.prompt_widths`; the full width only, if prompts are shared.
  """

  def __init__(self, table: RolloutTable, params, draw: Draw, *, model: Model, cfg: EngineConfig,
               mesh: Mesh | None):
    rows, width = table.prompts.tokens.shape
    self.table, self.cfg, self.mesh, self.draw = table, cfg, mesh, draw
    self.vocab_size = model.config.vocab_size
    self.programs = decoding.build(model, cfg.chunk, tuple(cfg.stop_ids), cfg.min_new_tokens > 0,
                                   mesh)
    self.rules = rules_on(draw.sampling)
    self.params = self.programs.decode_params(params)
    self.batch_sizes = sizes.batch_sizes(cfg, rows, sizes.shards(mesh))
    self.ring_sizes = sizes.ring_sizes(cfg, rows, table.max_turns)
    self.row, self.start = np.full(self.batch_sizes[0], -1), np.zeros(self.batch_sizes[0], int)
    self.columns, self.used, self.cache = self.ring_sizes[0], 0, None
    self.wave, self._prefilled = (0, 0), []
    self.width, self.store, self.prompt_widths = width, None, [width]
    if cfg.shared_prefix:
      places = sizes.prompt_places(cfg, rows)
      self.width = 0
      self.store = PromptStore(self.programs.empty(places, width, 0), places, cfg.group_size)
    else:
      self.prompt_widths = sizes.prompt_widths(width)
    c = model.config
    self._column_bytes = 2 * c.num_layers * c.num_kv_heads * c.head_dim * kv_cache.dtype(c).itemsize

  def live(self) -> np.ndarray:
    """Returns [S] bool, slots whose row is in flight."""
    return (self.row >= 0) & self.table.in_flight()[self.row]

  def active(self) -> np.ndarray:
    """Returns [S] bool, slots whose row is in flight and waits for no answer."""
    return (self.row >= 0) & self.table.active()[self.row]

  # Admission.

  def admit(self) -> bool:
    """Gives free slots to queued rows; returns whether any row is in flight."""
    idle = not self.live().any()
    if idle and self.table.queued():
      self._restart()
    free = np.flatnonzero(~self.live()) if self.cfg.refill or idle else np.array([], int)
    while len(free) and self.table.queued():
      if self.table.admitted == self.wave[1]:
        self._prefill()
      rows = self.table.next_rows(min(self.table.admitted + len(free), self.wave[1]))
      if not len(rows):
        continue
      enter_prompts = self._copy_prompts if self.store is None else self._share_prompts
      rows = enter_prompts(rows, free)
      if not len(rows):
        break
      slots, free = free[:len(rows)], free[len(rows):]
      self.row[slots], self.start[slots] = rows, self.used
      self.table.admitted += len(rows)
    return bool(self.live().any())

  def _restart(self) -> None:
    """Begins at the first column again, in the smallest ring. The old content is not read."""
    self.used = 0
    if self.cache is None or self.columns != self.ring_sizes[0]:
      self.columns = self.ring_sizes[0]
      self.cache = self.programs.empty(len(self.row), self.width, self.columns)

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

  def _copy_prompts(self, rows, free) -> np.ndarray:
    """Copies each row's prompt into a free slot; returns the rows, because all have one."""
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
    return rows

  def _share_prompts(self, rows, free) -> np.ndarray:
    """Puts missing prompts into the store; returns the leading rows whose prompt is stored."""
    store = self.store
    places, groups, rows = store.admit(self.row[self.live()], rows)
    source = groups - self.wave[0] // self.cfg.group_size
    fresh = np.isin(np.arange(len(self.row)), free[:len(rows)])
    moves, fresh = self._to_devices(((_padded(places, len(store.group)),
                                      _padded(source, len(store.group)), np.int32(len(groups))),
                                     fresh))
    self.cache, store.cache = self.programs.admit_shared(
        self.cache, store.cache, self._prefilled[0][1], moves, fresh)
    return rows

  # Sizes of batch and ring.

  def fit(self) -> None:
    """Brings batch and ring to the smallest sizes that the next chunk needs."""
    if not self.table.queued():
      self._compact()
    self._make_room()
    self._resize()

  def _compact(self) -> None:
    """Gathers the live rows into the smallest batch that holds them, one size after the other."""
    for size in self.batch_sizes[self.batch_sizes.index(len(self.row)) + 1:]:
      live = self.live()
      if live.sum() > size:
        return
      keep = np.concatenate([np.flatnonzero(live), np.flatnonzero(~live)])[:size]
      self.cache = self.programs.take(self.cache, self._to_devices(keep.astype(np.int32)))
      self.row, self.start = self.row[keep], self.start[keep]

  def _make_room(self) -> None:
    """Lets the oldest rows begin again at the ring's end, until the next chunk has room in it.

    A row that waited for an answer spans what other rows wrote meanwhile. It loses its columns and
    is fed its tokens again. A row that never waited always fits.
    """
    while True:
      slots = np.flatnonzero(self.live())
      oldest = slots[np.argmin(self.start[slots])]
      if self.used - self.start[oldest] + self._steps() <= self.ring_sizes[-1]:
        return
      self.table.rewind(self.row[oldest])
      self.start[oldest] = self.used

  def _resize(self) -> None:
    """Drops columns that no live row needs, and takes the smallest ring that holds the next chunk.

    The ring stays as it is where it has room for the chunk and a smaller one has not.
    """
    dropped, steps = int(self.start[self.live()].min()), self._steps()
    goal = next(i for i, size in enumerate(self.ring_sizes) if size >= self.used - dropped + steps)
    index = self.ring_sizes.index(self.columns)
    if self.used + steps <= self.columns and goal >= index:
      return
    self.used, self.start = self.used - dropped, np.maximum(self.start - dropped, 0)
    step = 1 if goal > index else -1
    for i in [*range(index + step, goal, step),
              goal]:  # one size at a time, to compile few programs
      self.columns = self.ring_sizes[i]
      self.cache = self.programs.shift(self.cache, self._to_devices(np.int32(dropped)), self.width,
                                       self.columns)
      dropped = 0

  # Decoding.

  def decode(self) -> tuple[np.ndarray, Sampled]:
    """Decodes one chunk; returns ([S] row of each slot, what the slots sampled, on the host)."""
    live, active = self.live(), self.active()
    row = np.where(live, self.row, 0)
    token, position = self.table.next_fed(row)
    turn_inputs = self.table.pending(row, self.cfg.chunk) if self.table.inserts else ()
    per_row = (token, position, np.where(active, self.table.left(row), 0),
               self.cfg.min_new_tokens - self.table.cursor[row], self.table.prompts.row_id[row],
               *turn_inputs)
    quota = min(self._quota(live.sum()), active.sum())
    inputs = ChunkInputs(np.int32(self.width + self.used), np.int32(self._steps()), np.int32(quota),
                         *(x.astype(np.int32) for x in per_row))
    shared = None
    if self.store is not None:
      shared = Shared(self.store.cache, *self._to_devices(self.store.maps(row, live)))
    self.cache, sampled = self.programs.decode(self.params, self.cache, shared,
                                               self._to_devices(inputs),
                                               self.draw, rules=self.rules)
    sampled = jax.device_get(sampled)
    self._count(sampled, position + 1)
    self.used += int(sampled.steps)
    return self.row, sampled

  def _steps(self) -> int:
    """Returns the steps of the next chunk at most: no row needs more."""
    return int(min(self.cfg.chunk, self.table.left(self.row[self.active()]).max()))

  def _quota(self, live: int) -> int:
    """Returns how many rows must end for a chunk to end early.

    Enough rows to admit others in their place, or to reach the next smaller batch.
    """
    if self.table.queued():
      return (self.cfg.quota or max(1, len(self.row) // 16)) if self.cfg.refill else live
    smaller = [size for size in self.batch_sizes if size < len(self.row)]
    return live - smaller[0] if smaller and live > smaller[0] else live

  def _count(self, sampled: Sampled, visible_before: np.ndarray) -> None:
    """Counts a chunk.

    Args:
      visible_before: [S], tokens that the first sampled token of each slot could see.
    """
    stats, steps, new = self.table.stats, int(sampled.steps), sampled.count.astype(int)
    stats.chunks += 1
    stats.slot_steps += len(self.row) * steps
    columns = len(self.row) * (self.width + self.columns)
    if self.store is not None:
      columns += len(self.store.group) * self.table.prompts.tokens.shape[1]
    held_bytes = columns * self._column_bytes
    stats.cache_bytes_read += steps * held_bytes
    stats.cache_bytes_held = max(stats.cache_bytes_held, held_bytes)
    visible = int((new * visible_before + new * (new - 1) // 2).sum())
    stats.cache_bytes_needed += visible * self._column_bytes

  def _to_devices(self, tree):
    """Replicates a tree on each device; the compiler gives each device its rows."""
    return jax.device_put(tree, None if self.mesh is None else parallel.replicated(self.mesh))


def _padded(x: np.ndarray, size: int) -> np.ndarray:
  """Returns int32 of length `size`, zeros after x."""
  return np.pad(x, (0, size - len(x))).astype(np.int32)
