"""A chunk of decode steps: its inputs from the host, its loop, and what it samples."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm import parallel
from jaxrl_llm.models import Model, kv_cache, row_cache
from jaxrl_llm.rollouts.next_token import Draw, row_keys, sample_token


@struct.dataclass
class ChunkInputs:
  """The state of the S rows that a chunk decodes, made on the host.

  Attributes:
    steps: int32 scalar, steps at most.
    quota: int32 scalar; the chunk ends early once this many rows have ended.
    token: [S] int32, the token that the first step feeds.
    position: [S] int32, position of that token in its row.
    length: [S] int32, tokens before it in the row's own columns of the cache.
    left: [S] int32, tokens that may still follow it; 0 for an empty slot, and for a row that waits
      for an answer.
    owed: [S] int32, tokens that must come before a stop token may.
    row_id: [S] int32.
    given: [S, C] int32, tokens that follow `token` without being sampled; C is the chunk's size.
      None if every row is one turn.
    pending: [S] int32, number of given tokens, or None.
    slots: [S] int32, the rows' places in the cache; None: all of its rows, in order.
    columns: static, columns of the cache that are read without the kernel; no length exceeds it.
  """

  steps: Int[Array, ""]
  quota: Int[Array, ""]
  token: Int[Array, " S"]
  position: Int[Array, " S"]
  length: Int[Array, " S"]
  left: Int[Array, " S"]
  owed: Int[Array, " S"]
  row_id: Int[Array, " S"]
  given: Int[Array, "S C"] | None = None
  pending: Int[Array, " S"] | None = None
  slots: Int[Array, " S"] | None = None
  columns: int = struct.field(pytree_node=False, default=0)


@struct.dataclass
class Shared:
  """The prompt of the store to which each row attends; as in `kv_cache.Prefix`.

  Attributes:
    store: cache of M prompts.
    length: [M] int32, tokens of each.
    rows: [M, G] int32, of the chunk's S rows.
    prompt, lane: [S] int32.
  """

  store: row_cache.RowCache
  length: Int[Array, " M"]
  rows: Int[Array, "M G"]
  prompt: Int[Array, " S"]
  lane: Int[Array, " S"]


@struct.dataclass
class Sampled:
  """Tokens of a chunk. The tokens of slot s are the first count[s] columns, given tokens included.

  Attributes:
    tokens: [S, C] int32.
    log_probs: [S, C] f32, nats; meaningless for given tokens.
    count: [S] int32.
    stopped: [S] bool, the slot's last token is a sampled stop token.
    steps: int32 scalar, steps taken.
  """

  tokens: Int[Array, "S C"]
  log_probs: Float[Array, "S C"]
  count: Int[Array, " S"]
  stopped: Bool[Array, " S"]
  steps: Int[Array, ""]


@struct.dataclass
class _Loop:
  cache: kv_cache.KVCache | row_cache.RowCache
  token: Int[Array, " S"]
  live: Bool[Array, " S"]
  sampled: Sampled


@dataclasses.dataclass(frozen=True)
class Decoder:
  """Decodes chunks of one network; static in the compiled program.

  Attributes:
    model: with separate blocks.
    chunk: steps of a chunk at most.
    stop_ids: tokens that end a row.
    forbid: whether stop tokens are forbidden while `ChunkInputs.owed` is above 0.
    mesh: None on one device.
    kernel: whether steps read and write the cache itself (models/live_attention.py).
  """

  model: Model
  chunk: int
  stop_ids: tuple[int, ...]
  forbid: bool
  mesh: Mesh | None
  kernel: bool = False

  @property
  def _windows(self) -> tuple[int, ...]:
    return kv_cache.windows(self.model.config)

  def lay(self, cache):
    """Divides the rows of a cache over the devices, and its heads over `tensor`."""
    return cache if self.mesh is None else jax.tree.map(self._lay_array, cache)

  def _lay_array(self, x):
    """Lays out keys and values [.., S, K, .., ..], positions and segments [S, ..], or a scalar."""
    axes = (None,) * (x.ndim - 4) + ("rows", "kv_heads", None, None) if x.ndim >= 4 else (
        "rows", None)[:x.ndim]
    layout = parallel.spec(axes, x.shape, self.mesh)
    return lax.with_sharding_constraint(x, NamedSharding(self.mesh, layout))

  def decode(self, params, cache: row_cache.RowCache, shared: Shared | None, inputs: ChunkInputs,
             draw: Draw, *, rules: frozenset[str]) -> tuple[row_cache.RowCache, Sampled]:
    """Decodes a chunk: each step feeds each row's last token and samples the next.

    Without the kernel, the steps read and write a copy of the rows' first columns, or of a window's
    last ones, in which all rows write the same slot; their new columns enter the cache at the end.

    Args:
      rules: static, the rules of `draw.sampling` that may be on, as in `next_token.sample_token`.
    """
    if self.kernel:
      return self._steps(params, cache, shared, inputs, draw, rules)
    copied = self.lay(row_cache.window(cache, inputs.slots, inputs.length, inputs.position,
                                       inputs.columns, self.chunk, self._windows))
    copied, sampled = self._steps(params, copied, shared, inputs, draw, rules)
    new = row_cache.of_slots(copied, -self.chunk)
    return jax.tree.map(lambda old, new: self._enter(old, new, inputs), cache, new), sampled

  def _enter(self, old, new, inputs: ChunkInputs):
    """Returns an array of the cache with a chunk's columns at the end of each row."""

    def enter(old, new, length, *slots):
      number = jnp.arange(len(length))
      return row_cache.put(old, new, *slots or (number,), number, length, len(length))

    slots = () if inputs.slots is None else (inputs.slots,)
    arrays = (old, new, inputs.length, *slots)
    if self.mesh is None:
      return enter(*arrays)
    heads = ("rows", "kv_heads", None, None)
    axes = (heads, heads, *[("rows",)] * (len(arrays) - 2))
    return parallel.Layout(self.mesh).by_shard(enter, arrays, axes)

  def _steps(self, params, cache, shared: Shared | None, inputs: ChunkInputs, draw: Draw,
             rules: frozenset[str]):
    model, keys, head = self.model, row_keys(draw.key, inputs.row_id), self.model.head(params)
    stops = jnp.asarray(self.stop_ids, jnp.int32)
    is_stop = jnp.isin(jnp.arange(model.config.vocab_size), stops)
    started, turns = _count(inputs.left > 0), inputs.given is not None
    prefix = None if shared is None else row_cache.prefix(shared.store, shared.length, shared.rows,
                                                          shared.prompt, shared.lane,
                                                          self._windows)

    def unfinished(loop: _Loop):
      live = _count(loop.live)
      return (loop.sampled.steps < inputs.steps) & (live > 0) & (started - live < inputs.quota)

    def step(loop: _Loop) -> _Loop:
      sampled, live = loop.sampled, loop.live
      position, cache = inputs.position + sampled.steps, loop.cache.replace(prefix=prefix)
      if self.kernel:
        cache = cache.replace(length=jnp.where(live, inputs.length + sampled.steps + 1, 0))
      hidden, cache = model.hidden(params, loop.token[:, None], position[:, None],
                                   live[:, None].astype(jnp.int32), cache=cache)
      cache = cache.replace(prefix=None, **({"length": None} if self.kernel else {}))
      forbidden = (sampled.steps < inputs.owed)[:, None] & is_stop if self.forbid else None
      token, log_prob = sample_token(hidden[:, 0], head, (keys, position + 1), draw.sampling,
                                     forbidden, rules=rules)
      stop = live & jnp.isin(token, stops)
      if turns:
        forced = sampled.steps < inputs.pending
        token, stop = jnp.where(forced, inputs.given[:, sampled.steps], token), stop & ~forced
      sampled = _append(sampled, token, log_prob, live, stop)
      live = live & ~stop & (sampled.steps < inputs.left)
      return _Loop(self.lay(cache), token, live, sampled)

    begin = _Loop(cache, inputs.token, inputs.left > 0, self._nothing(len(inputs.token)))
    end = lax.while_loop(unfinished, step, begin)
    return end.cache, end.sampled

  def _nothing(self, rows: int) -> Sampled:
    return Sampled(jnp.zeros((rows, self.chunk), jnp.int32),
                   jnp.zeros((rows, self.chunk), jnp.float32), jnp.zeros(rows, jnp.int32),
                   jnp.zeros(rows, bool), jnp.int32(0))


def _count(rows: Bool[Array, " S"]) -> Int[Array, ""]:
  return jnp.sum(rows, dtype=jnp.int32)


def _append(sampled: Sampled, token, log_prob, live, stop) -> Sampled:
  """Returns the chunk with one more step."""

  def put(old, new):
    return lax.dynamic_update_slice(old, new[:, None], (0, sampled.steps))

  return Sampled(put(sampled.tokens, token), put(sampled.log_probs, log_prob), sampled.count + live,
                 sampled.stopped | stop, sampled.steps + 1)
