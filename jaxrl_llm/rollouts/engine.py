"""Generation with rows that come and go: a host loop over compiled chunks of decode steps.

Rows wait in a queue and take the slots of a fixed batch. Between two chunks, ended rows give their slot to waiting
ones; once none waits, the rows that are left move into a smaller batch. A token's noise is a function of (key, row_id,
position) alone, so none of this changes a token beyond rounding: `run` draws what `sampler.generate` draws.

With an environment, a row has turns: what the environment puts behind one is fed through the row's cache token by
token, in the same chunks in which other rows draw (turns.py).
"""

import dataclasses

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import decoding
from jaxrl_llm.rollouts.decoding import Slots
from jaxrl_llm.rollouts.environment import Environment
from jaxrl_llm.rollouts.turns import Turns
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, PromptBatch, Rollout, Sampling

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
    refill: waiting rows take the slots of ended ones between chunks; else all rows in flight end first.
    compact: once no row waits, the rows left are gathered into half the batch, and again.
    quota: with waiting rows, a chunk ends early once this many rows have ended; 0: a sixteenth of the slots.
    shared_prefix: a prompt's cache is kept once and attended to by all rows of its group, instead of copied to each. A
      group waits while all places for prompts are taken, see `prompt_places`. On one device only.
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
  compact: bool = True
  quota: int = 0
  shared_prefix: bool = False


@dataclasses.dataclass
class Stats:
  """What a run did, counted on the host.

  Attributes:
    slot_steps: decode steps times batch rows, whether a row was in the slot or not.
    useful_steps: those that drew a token, or fed one that an environment inserted, for the first time.
    cache_bytes_read: keys and values that attention read, slots that hold nothing for a row included.
    cache_bytes_needed: those of the tokens that a row's draws could see, row by row; shared prompts are read less.
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


def run(params, prompts: PromptBatch, key: jax.Array, sampling: Sampling, *, model: Model, cfg: EngineConfig,
        mesh: Mesh | None = None, max_new=None, environment: Environment | None = None, max_turns: int = 1,
        max_turn_tokens: int | None = None, tool_workers: int = 4) -> tuple[Rollout, Stats]:
  """Sample completions of all rows. The key is consumed.

  Args:
    params: of `model`.
    prompts: [B, P], each prompt on `cfg.group_size` contiguous rows. Rows are admitted in this order.
    key: a row's noise is fold_in(fold_in(key, row_id), position).
    sampling: traced; temperature 0 is greedy. Tokens are drawn from what its rules keep, renormalised.
    mesh: rows in flight, and the rows returned, are divided over its data devices. None: one device.
    max_new: int [B], completion tokens of a row at most, 1 to cfg.max_new_tokens; None: cfg.max_new_tokens. A row that
      ends so is truncated. Inserted ids count; where they do not fit as a whole, none is put in.
    environment: asked after each chunk whether a row's turn is over, and in another thread what follows it; the row
      waits meanwhile, others go on. None: every row is one turn without a limit of its own.
    max_turns: of the policy in a row; the environment is told which is the last.
    max_turn_tokens: a turn that is not over with this many tokens ends its row, which is truncated; None: no limit.
    tool_workers: threads in which the environment answers.

  Returns:
    (Rollout with L = P + max_new_tokens as from `sampler.generate`, Stats). With `min_new_tokens`, behavior_log_probs
    are those of the distribution without stop tokens where these are forbidden. With an environment, also turn_id and
    void; mask is False on inserted ids.

  Raises:
    ConfigError: sizes that do not fit the rows or devices; limits out of range; several processes. What the
    environment raises, once its other answers under way have come.
  """
  host = jax.tree.map(np.asarray, jax.device_get(prompts))
  limit = np.full(len(host.row_id), cfg.max_new_tokens) if max_new is None else np.asarray(max_new)
  check(cfg, host, limit, mesh)
  if environment is None and (max_turns, max_turn_tokens) != (1, None):
    raise ConfigError(f"max_turns = {max_turns} and max_turn_tokens = {max_turn_tokens} without an environment: "
                      "allowed are 1 and None. Fix: an environment.")
  turns = None if environment is None else Turns(environment, len(limit), cfg.max_new_tokens, max_turns,
                                                 max_turn_tokens, tool_workers)
  flight = _Flight(params, host, key, sampling, limit, model, cfg, mesh, turns)
  try:
    while flight.admit():
      if turns:
        turns.collect(flight)
      if flight.active().any():
        flight.fit()
        flight.decode()
  finally:
    if turns:
      turns.close()
  rollout = _assemble(flight, cfg)
  place = jax.device_put if mesh is None else lambda tree: parallel.to_global(tree, mesh)
  return place(rollout), flight.stats


def rollout_shape(prompts: PromptBatch, cfg: EngineConfig, *, turns: bool = False) -> Rollout:
  """Shapes and dtypes of what `run` returns (`turns`: with an environment), for programs made before the first one."""
  (rows, width), struct = prompts.tokens.shape, jax.ShapeDtypeStruct
  whole, row = (rows, width + cfg.max_new_tokens), struct((rows,), np.int32)
  return Rollout(tokens=struct(whole, np.int32), mask=struct(whole, bool), length=row, prompt_length=row,
                 behavior_log_probs=struct(whole, np.float32), truncated=struct((rows,), bool), stop_reason=row,
                 policy_step=row, row_id=row, group_id=row, turn_id=struct(whole, np.int32) if turns else None,
                 void=struct((rows,), bool) if turns else None)


def batch_sizes(cfg: EngineConfig, rows: int, shards: int = 1) -> list[int]:
  """Batches that a run of `rows` rows may decode in, largest first; each divides over the devices."""
  first = min(cfg.slots, -(-rows // shards) * shards)
  sizes, size = [first], 1 << (max(first - 1, 1).bit_length() - 1)
  while cfg.compact and size * SMALLEST >= first and size % shards == 0 and size < sizes[-1]:
    sizes.append(size)
    size //= 2
  return sizes


def prompt_places(cfg: EngineConfig, rows: int) -> int:
  """Prompts that the store holds: those of full slots, twice where groups end one by one and others follow."""
  slots = min(cfg.slots, rows)
  full = -(-slots // cfg.group_size)
  aligned = full if slots % cfg.group_size == 0 else full + 1
  return min(2 * full + 1 if cfg.refill and rows > slots else aligned, rows // cfg.group_size)


def ring_sizes(cfg: EngineConfig, rows: int, max_turns: int = 0) -> list[int]:
  """Ring sizes, smallest first; max_turns: of an environment's rows, 0 without one.

  Rows of different ages need up to a chunk more than the longest row; a row that waited, what others wrote meanwhile.
  For each turn, two chunks are held for that, up to the length of a row.
  """
  most = cfg.max_new_tokens + (cfg.chunk - 1 if max_turns or (cfg.refill and rows > cfg.slots) else 0)
  most += min(2 * cfg.chunk * max(max_turns - 1, 0), cfg.max_new_tokens)
  return [min(size, most) for size in range(cfg.window, most + cfg.window, cfg.window)]


def programs(cfg: EngineConfig, rows: int, shards: int = 1, max_turns: int = 0) -> int:
  """Most programs that runs of `rows` rows with one prompt width and dtype compile, whatever the sampling values.

    4 (prepare, prefill, empty) + W (admit) + S W (decode) + S (3 W - 2) (shift) + (S - 1) W (take)

  with S batch sizes and W ring sizes; `empty` makes the cache, and the store of shared prompts. Ring and batch
  change by one size at a time. max_turns: as in `ring_sizes`.
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
      raise ConfigError(f"{name} = {getattr(cfg, name)}: allowed are 1 to inf. Fix: {name}=1 or more.")
  rows = len(host.row_id)
  if rows % cfg.group_size:
    raise ConfigError(f"{rows} rows do not divide into groups of group_size = {cfg.group_size}. Fix: whole groups.")
  if limit.shape != (rows,) or limit.min() < 1 or limit.max() > cfg.max_new_tokens:
    raise ConfigError(f"max_new has shape {limit.shape} and values {limit.min()} to {limit.max()}: allowed are "
                      f"({rows},) and 1 to max_new_tokens = {cfg.max_new_tokens}. Fix: such a limit for each row.")
  if jax.process_count() > 1:
    raise ConfigError(f"the engine serves one process, there are {jax.process_count()}. Fix: rollouts.generate.")
  shards = _shards(mesh)
  if cfg.shared_prefix and mesh is not None and mesh.size > 1:
    raise ConfigError(f"shared_prefix = True on {mesh.size} devices: allowed is 1. Fix: shared_prefix=False.")
  if batch_sizes(cfg, rows, shards)[0] % shards:
    raise ConfigError(f"slots = {cfg.slots} does not divide over {shards} devices. Fix: a multiple of {shards}.")


def _shards(mesh: Mesh | None) -> int:
  return 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]


class _Flight:
  """State of one run: the device's cache, and what the host knows of rows and slots.

  Attributes:
    cache, ring, used: the device's cache, its ring slots, and how many of these are written.
    row: [S], each slot's row, -1 where it is empty.
    start: [S], the ring slot that the slot's row wrote first.
    count: [B], completion tokens;  tokens, log_probs: [B, N];  reason: [B], why the row ended, -1 while it has not.
    base: [B], completion tokens up to the one that is fed next; the ones behind are `pending`, and fed as they are.
    next: first row that has not been admitted;  wave: (first, last) row of the prefilled groups.
    store, place: cache of shared prompts, and [M] the group that each of its places holds, -1 for none; or None.
    turns: what is known of the rows' turns, or None.
    width: slots in front of the ring, which hold a row's own copy of its prompt; 0 where prompts are shared.
  """

  def __init__(self, params, host: PromptBatch, key, sampling: Sampling, limit, model: Model, cfg: EngineConfig, mesh,
               turns: Turns | None):
    rows, width = host.tokens.shape
    self.width, self.store, self.place = 0 if cfg.shared_prefix else width, None, None
    self.host, self.key, self.sampling, self.limit, self.cfg, self.mesh = host, key, sampling, limit, cfg, mesh
    self.turns = turns
    self.programs = decoding.build(model, cfg.chunk, tuple(cfg.stop_ids), cfg.min_new_tokens > 0, mesh)
    self.params = self.programs.prepare(params)
    self.sizes = batch_sizes(cfg, rows, _shards(mesh))
    self.rings = ring_sizes(cfg, rows, turns.max_turns if turns else 0)
    self.ring, self.used, self.cache = self.rings[0], 0, None
    self.row, self.start = np.full(self.sizes[0], -1), np.zeros(self.sizes[0], int)
    self.next, self.wave, self.prefilled = 0, (0, 0), None
    self.tokens = np.full((rows, cfg.max_new_tokens), cfg.pad_id, np.int32)
    self.log_probs = np.zeros((rows, cfg.max_new_tokens), np.float32)
    self.count, self.base, self.reason = np.zeros(rows, int), np.zeros(rows, int), np.full(rows, -1)
    self.stats = Stats()
    if cfg.shared_prefix:
      self.place = np.full(prompt_places(cfg, rows), -1)
      self.store = self.programs.empty(len(self.place), width, 0)
    m = model.config
    self.slot_bytes = 2 * m.num_layers * m.num_kv_heads * m.head_dim * np.dtype(m.compute_dtype).itemsize

  def active(self) -> np.ndarray:
    """[S] bool: the slot's row can go on now."""
    return (self.row >= 0) & ~np.isin(self.row, list(self.turns.waiting)) if self.turns else self.row >= 0

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
        self.ring, self.cache = self.rings[0], self.programs.empty(len(self.row), self.width, self.rings[0])
    free = np.flatnonzero(~live) if self.cfg.refill or not live.any() else np.array([], int)
    while len(free) and self.next < rows:
      if self.next == self.wave[1]:
        self._prefill()
      taken = np.arange(self.next, min(self.next + len(free), self.wave[1]))
      taken = taken[:self._enter_prompts(taken, free) if self.place is None else self._share_prompts(taken, free)]
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
    """Prompts that the store lacks, as far as it has places; the number of rows whose prompt is there."""
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
    self.prefilled = self.programs.prefill(self.params, *self._put((self.host.tokens[first].astype(np.int32),
                                                                    self.host.prompt_length[first].astype(np.int32))))
    self.wave = (self.next, min(self.next + size * groups, rows))
    self.stats.prefill_tokens += groups * self.host.tokens.shape[1]

  def fit(self) -> None:
    """Bring batch and ring to the least sizes that the next chunk needs."""
    live = np.flatnonzero(self.row >= 0)
    if self.next == len(self.limit):
      while (at := self.sizes.index(len(self.row)) + 1) < len(self.sizes) and len(live) <= self.sizes[at]:
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
      self.cache = self.programs.shift(self.cache, self._put(np.int32(dead)), self.width, self.rings[at])
      self.used, self.start, self.ring, dead = self.used - dead, np.maximum(self.start - dead, 0), self.rings[at], 0
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
    last = np.where(base > 0, self.tokens[row, np.maximum(base - 1, 0)], self.host.tokens[row, prompt - 1])
    left = np.where(active, self.until(row) - base, 0)
    given = self.turns.given(self, row) if self.turns else ()
    slots = Slots(*(x.astype(np.int32) for x in (last, prompt + base - 1, left, self.cfg.min_new_tokens - base,
                                                 self.host.row_id[row], *given)))
    quota = min(self._quota(live.sum()), active.sum())
    index, steps, quota = (np.int32(x) for x in (self.width + self.used, self.steps(), quota))
    slots, (index, steps, quota) = self._put(slots), self._put((index, steps, quota))
    self.cache, drawn = self.programs.decode(self.params, self.cache, self._shared(live, row), index, slots, self.key,
                                             self.sampling, steps, quota)
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
      self.tokens[row, at], self.log_probs[row, at] = drawn.tokens[slot, given:fed], drawn.log_probs[slot, given:fed]
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


def _assemble(flight: _Flight, cfg: EngineConfig) -> Rollout:
  """Rows with prompt and completion contiguous, on the host."""
  host, count = flight.host, flight.count.astype(np.int32)
  rows, width = host.tokens.shape
  new = np.arange(width + cfg.max_new_tokens) - host.prompt_length[:, None]
  inside = (new >= 0) & (new < count[:, None])
  completion = lambda x: np.take_along_axis(x, np.clip(new, 0, cfg.max_new_tokens - 1), axis=1)
  prompt = np.pad(host.tokens, ((0, 0), (0, cfg.max_new_tokens)))
  tokens = np.where(new < 0, prompt, np.where(inside, completion(flight.tokens), cfg.pad_id))
  turn_id = np.where(inside, completion(flight.turns.turn_id), 0).astype(np.int32) if flight.turns else None
  mask = inside if turn_id is None else turn_id > 0
  return Rollout(
      tokens=tokens.astype(np.int32), mask=mask, length=(host.prompt_length + count).astype(np.int32),
      prompt_length=host.prompt_length.astype(np.int32),
      behavior_log_probs=np.where(mask, completion(flight.log_probs), 0).astype(np.float32),
      truncated=flight.reason == STOP_LENGTH, stop_reason=flight.reason.astype(np.int32),
      policy_step=np.zeros(rows, np.int32), row_id=host.row_id, group_id=host.group_id, turn_id=turn_id,
      void=flight.turns.void if flight.turns else None)
