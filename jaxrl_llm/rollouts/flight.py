"""The state of one run of the engine, and the moves between two chunks: admit rows, fit the sizes,
decode, enter.
"""

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.rollouts import decoding, plan
from jaxrl_llm.rollouts.decoding import Slots
from jaxrl_llm.rollouts.plan import EngineConfig, Stats
from jaxrl_llm.rollouts.turns import Turns
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, PromptBatch, Sampling


class Flight:
  """State of one run: the device's cache, and what the host knows of rows and slots.

  Attributes:
    cache, ring, used: the device's cache, its ring slots, and how many of these are written.
    row: [S], each slot's row, -1 where it is empty.
    start: [S], the ring slot that the slot's row wrote first.
    count: [B], completion tokens;  tokens, log_probs: [B, N];  reason: [B], why the row ended, -1
      while it has not.
    base: [B], completion tokens up to the one that is fed next; the ones behind are `pending`, and
      fed as they are.
    next: first row that has not been admitted;  wave: (first, last) row of the prefilled groups.
    store, place: cache of shared prompts, and [M] the group that each of its places holds, -1 for
      none; or None.
    turns: what is known of the rows' turns, or None.
    width: slots in front of the ring, which hold a row's own copy of its prompt; 0 where prompts
      are shared.
  """

  def __init__(self, params, host: PromptBatch, key, sampling: Sampling, limit, model: Model,
               cfg: EngineConfig, mesh, turns: Turns | None):
    rows, width = host.tokens.shape
    self.width, self.store, self.place = 0 if cfg.shared_prefix else width, None, None
    self.host, self.key, self.sampling, self.limit, self.cfg, self.mesh = host, key, sampling, limit, cfg, mesh
    self.turns = turns
    self.programs = decoding.build(model, cfg.chunk, tuple(cfg.stop_ids), cfg.min_new_tokens > 0,
                                   mesh)
    self.params = self.programs.prepare(params)
    self.sizes = plan.batch_sizes(cfg, rows, plan.shards(mesh))
    self.rings = plan.ring_sizes(cfg, rows, turns.max_turns if turns else 0)
    self.ring, self.used, self.cache = self.rings[0], 0, None
    self.row, self.start = np.full(self.sizes[0], -1), np.zeros(self.sizes[0], int)
    self.next, self.wave, self.prefilled = 0, (0, 0), None
    self.tokens = np.full((rows, cfg.max_new_tokens), cfg.pad_id, np.int32)
    self.log_probs = np.zeros((rows, cfg.max_new_tokens), np.float32)
    self.count, self.base, self.reason = np.zeros(rows, int), np.zeros(rows, int), np.full(rows, -1)
    self.stats = Stats()
    if cfg.shared_prefix:
      self.place = np.full(plan.prompt_places(cfg, rows), -1)
      self.store = self.programs.empty(len(self.place), width, 0)
    m = model.config
    self.slot_bytes = 2 * m.num_layers * m.num_kv_heads * m.head_dim * kv_cache.dtype(m).itemsize

  def active(self) -> np.ndarray:
    """[S] bool: the slot's row can go on now."""
    return (self.row
            >= 0) & ~np.isin(self.row, list(self.turns.waiting)) if self.turns else self.row >= 0

  def until(self, row) -> np.ndarray:
    """Completion tokens of these rows at the end of their turn at most."""
    return np.minimum(self.limit[row], self.turns.most(row)) if self.turns else self.limit[row]

  def end(self, row: int, reason: int) -> None:
    """The row gives its slot away."""
    self.reason[row], self.row[self.row == row] = reason, -1

  def admit(self) -> bool:
    """Give empty slots to waiting rows; False once no row is left."""
    live, rows = self.row >= 0, len(self.limit)
    if not live.any() and self.next < rows:
      self.used = 0
      if self.cache is None or self.ring != self.rings[0]:
        self.ring, self.cache = self.rings[0], self.programs.empty(len(self.row), self.width,
                                                                   self.rings[0])
    free = np.flatnonzero(~live) if self.cfg.refill or not live.any() else np.array([], int)
    while len(free) and self.next < rows:
      if self.next == self.wave[1]:
        self._prefill()
      taken = np.arange(self.next, min(self.next + len(free), self.wave[1]))
      taken = taken[:self._enter_prompts(taken, free) if self.place is
                    None else self._share_prompts(taken, free)]
      if not len(taken):
        break
      slots, free = free[:len(taken)], free[len(taken):]
      self.row[slots], self.start[slots], self.next = taken, self.used, self.next + len(taken)
    return bool((self.row >= 0).any())

  def _enter_prompts(self, taken, free) -> int:
    """Each row's own copy of its prompt; the number of rows, which is all."""
    pad = lambda x: np.pad(x, (0, len(self.row) - len(x))).astype(np.int32)
    source = (taken - self.wave[0]) // self.cfg.group_size
    at = self._put((pad(free[:len(taken)]), pad(source), np.int32(len(taken))))
    self.cache = self.programs.admit(self.cache, self.prefilled, *at)
    return len(taken)

  def _share_prompts(self, taken, free) -> int:
    """Prompts that the store lacks, as far as it has places; the number of rows whose prompt is
    there.
    """
    size, group = self.cfg.group_size, taken // self.cfg.group_size
    needed = np.concatenate([self.row[self.row >= 0] // size, group[:1]])
    places = np.flatnonzero(~np.isin(self.place, needed))
    new = np.setdiff1d(group, self.place)[:len(places)]
    places = places[:len(new)]
    self.place[places] = new
    taken = taken[np.cumprod(np.isin(group, self.place)).astype(bool)]
    pad = lambda x: np.pad(x, (0, len(self.place) - len(x))).astype(np.int32)
    fresh = np.isin(np.arange(len(self.row)), free[:len(taken)])
    at = self._put((pad(places), pad(new - self.wave[0] // size), np.int32(len(new)), fresh))
    self.cache, self.store = self.programs.admit_shared(self.cache, self.store, self.prefilled, *at)
    return len(taken)

  def _prefill(self) -> None:
    """The next groups, as many as fill the slots; the last ones' shape is filled with copies."""
    size, rows = self.cfg.group_size, len(self.limit)
    groups = min(-(-len(self.row) // size), rows // size)
    first = np.minimum(self.next + size * np.arange(groups), rows - size)
    self.prefilled = self.programs.prefill(
        self.params,
        *self._put((self.host.tokens[first].astype(np.int32),
                    self.host.prompt_length[first].astype(np.int32))))
    self.wave = (self.next, min(self.next + size * groups, rows))
    self.stats.prefill_tokens += groups * self.host.tokens.shape[1]

  def fit(self) -> None:
    """Bring batch and ring to the least sizes that the next chunk needs."""
    live = np.flatnonzero(self.row >= 0)
    if self.next == len(self.limit):
      while (at := self.sizes.index(len(self.row)) + 1) < len(
          self.sizes) and len(live) <= self.sizes[at]:
        keep = np.concatenate([live, np.flatnonzero(self.row < 0)])[:self.sizes[at]]
        self.cache = self.programs.take(self.cache, self._put(keep.astype(np.int32)))
        self.row, self.start = self.row[keep], self.start[keep]
        live = np.flatnonzero(self.row >= 0)
    if self.turns:
      self.turns.make_room(self)
    dead, steps = int(self.start[live].min()), self.steps()
    goal = next(i for i, size in enumerate(self.rings) if size >= self.used - dead + steps)
    at = self.rings.index(self.ring)
    if self.used + steps <= self.ring and goal >= at:
      return
    while True:
      at += int(np.sign(goal - at))
      self.cache = self.programs.shift(self.cache, self._put(np.int32(dead)), self.width,
                                       self.rings[at])
      self.used, self.start, self.ring, dead = self.used - dead, np.maximum(self.start - dead,
                                                                            0), self.rings[at], 0
      if at == goal:
        return

  def steps(self) -> int:
    """Steps of the next chunk at most: no row needs more."""
    row = self.row[self.active()]
    return int(min(self.cfg.chunk, (self.until(row) - self.base[row]).max()))

  def _quota(self, live: int) -> int:
    """Ended rows that end a chunk: enough to admit others for, or to halve the batch."""
    if self.next < len(self.limit):
      return (self.cfg.quota or max(1, len(self.row) // 16)) if self.cfg.refill else live
    smaller = [size for size in self.sizes if size < len(self.row)]
    return live - smaller[0] if smaller and live > smaller[0] else live

  def decode(self) -> None:
    """One chunk, and its tokens entered on the host."""
    live, active = self.row >= 0, self.active()
    row = np.where(live, self.row, 0)
    base, prompt = self.base[row], self.host.prompt_length[row]
    last = np.where(base > 0, self.tokens[row, np.maximum(base - 1, 0)],
                    self.host.tokens[row, prompt - 1])
    left = np.where(active, self.until(row) - base, 0)
    given = self.turns.given(self, row) if self.turns else ()
    slots = Slots(*(x.astype(np.int32)
                    for x in (last, prompt + base - 1, left, self.cfg.min_new_tokens - base,
                              self.host.row_id[row], *given)))
    quota = min(self._quota(live.sum()), active.sum())
    index, steps, quota = (np.int32(x) for x in (self.width + self.used, self.steps(), quota))
    slots, (index, steps, quota) = self._put(slots), self._put((index, steps, quota))
    self.cache, drawn = self.programs.decode(self.params, self.cache, self._shared(live, row),
                                             index, slots, self.key, self.sampling, steps, quota)
    self._enter(jax.device_get(drawn), prompt + base)

  def _shared(self, live, row) -> decoding.Shared | None:
    """Each row's place in the store; a row's lane is its number in its group."""
    if self.place is None:
      return None
    group, lane = row // self.cfg.group_size, np.where(live, row % self.cfg.group_size, 0)
    prompt = np.where(live, np.argmax(self.place == group[:, None], 1), 0)
    rows = np.zeros((len(self.place), self.cfg.group_size), np.int32)
    rows[prompt[live], lane[live]] = np.flatnonzero(live)
    maps = self._put((rows, prompt.astype(np.int32), lane.astype(np.int32)))
    return decoding.Shared(self.store, *maps)

  def _enter(self, drawn: decoding.Drawn, seen: np.ndarray) -> None:
    """`seen`: tokens that each slot's first draw could see."""
    done = int(drawn.steps)
    for slot in np.flatnonzero(drawn.count):
      row, fed = self.row[slot], int(drawn.count[slot])
      given = min(fed, self.count[row] - self.base[row])
      at = slice(self.count[row], self.count[row] + fed - given)
      self.tokens[row, at], self.log_probs[row,
                                           at] = drawn.tokens[slot,
                                                              given:fed], drawn.log_probs[slot,
                                                                                          given:fed]
      self.count[row] += fed - given
      self.base[row] += fed
      if fed == given:
        continue
      if (not self.turns or self.turns.goes_on(self, row)) and (
          drawn.stopped[slot] or self.count[row] == self.until(row)):
        self.end(row, STOP_TOKEN if drawn.stopped[slot] else STOP_LENGTH)
    self.used += done
    new, stats = drawn.count.astype(int), self.stats
    stats.chunks += 1
    stats.slot_steps += len(self.row) * done
    stats.useful_steps += int(new.sum())  # less what `turns` takes off again
    shared = 0 if self.place is None else len(self.place) * self.host.tokens.shape[1]
    held = (len(self.row) * (self.width + self.ring) + shared) * self.slot_bytes
    stats.cache_bytes_read += done * held
    stats.cache_bytes_held = max(stats.cache_bytes_held, held)
    stats.cache_bytes_needed += int((new * seen + new * (new - 1) // 2).sum()) * self.slot_bytes

  def _put(self, tree):
    """On the devices: whole on each of them; the compiler gives each its rows."""
    return jax.device_put(tree, None if self.mesh is None else parallel.replicated(self.mesh))
