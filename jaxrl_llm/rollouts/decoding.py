"""The engine's compiled programs: prefill, admission of rows, a chunk of decode steps, and changes
of the cache's size.

The cache of S rows has the prompts' P columns, and after them a ring of w columns that all rows
write at one shared index (models/kv_cache.py, where a column is a slot). A row that is admitted
later than its neighbours begins further right, and the older content of its row is marked as empty.
So one scalar write serves rows of any age. Attention reads P + w columns, where w covers the oldest
row in flight; an index per row would need as many.

Shared prompts lie in a store of their own, once per group, and the cache is the ring only.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm import parallel
from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.rollouts.next_token import row_keys, sample_token
from jaxrl_llm.types import Sampling

# leaves that the network reads in f32, by their last key
FULL_PRECISION = ("scale", "router", "value_head")


@struct.dataclass
class ChunkInputs:
  """What a chunk needs to know of the rows in the S slots, made on the host.

  Attributes:
    index: int32 scalar, the column that the first step writes.
    steps: int32 scalar, steps at most.
    quota: int32 scalar; the chunk ends early once this many rows have ended.
    token: [S] int32, the token that the first step feeds.
    position: [S] int32, position of that token in its row.
    left: [S] int32, tokens that may still follow it; 0 for an empty slot, and for a row that waits
      for an answer.
    owed: [S] int32, tokens that must come before a stop token may.
    row_id: [S] int32.
    given: [S, C] int32, tokens that follow `token` without being sampled; C is the chunk's size.
      None if every row is one turn.
    pending: [S] int32, number of given tokens, or None.
  """

  index: Int[Array, ""]
  steps: Int[Array, ""]
  quota: Int[Array, ""]
  token: Int[Array, " S"]
  position: Int[Array, " S"]
  left: Int[Array, " S"]
  owed: Int[Array, " S"]
  row_id: Int[Array, " S"]
  given: Int[Array, "S C"] | None = None
  pending: Int[Array, " S"] | None = None


@struct.dataclass
class Shared:
  """The prompt of the store to which each row attends; as in `kv_cache.Prefix`.

  Attributes:
    store: cache of M prompts.
    rows: [M, G] int32, slots.
    prompt, lane: [S] int32.
  """

  store: kv_cache.KVCache
  rows: Int[Array, "M G"]
  prompt: Int[Array, " S"]
  lane: Int[Array, " S"]


@struct.dataclass
class Sampled:
  """Tokens of a chunk. Those of slot s are the first count[s] columns, given tokens among them.

  Attributes:
    tokens: [S, C] int32.
    log_probs: [S, C] f32, nats; meaningless for given tokens.
    count: [S] int32.
    stopped: [S] bool, the slot's last token is a sampled stop token.
    steps: int32 scalar, ring columns written.
  """

  tokens: Int[Array, "S C"]
  log_probs: Float[Array, "S C"]
  count: Int[Array, " S"]
  stopped: Bool[Array, " S"]
  steps: Int[Array, ""]


@struct.dataclass
class _Loop:
  cache: kv_cache.KVCache
  token: Int[Array, " S"]
  live: Bool[Array, " S"]
  sampled: Sampled


@dataclasses.dataclass(frozen=True)
class Programs:
  """Jitted programs; each compiles once per number of rows S and ring size w that it meets.

  Attributes:
    decode_params: params -> params as `decode` reads them, which may be the same arrays.
    prefill: (params, tokens [M P], length [M]) -> cache of all prompt tokens but the last, which
      decode feeds.
    empty: (S, P, w) -> cache; static sizes.
    admit: (cache, prefilled, to [S], source [S], count) -> cache with prompt source[i] in row to[i]
      for i < count. Consumes the cache.
    admit_shared: (cache, store, prefilled, to [M], source [M], count, fresh [S]) -> (cache, store)
      with prompt source[i] in place to[i] of the store, and the rows `fresh` of the cache empty.
      Consumes cache and store.
    decode: (params, cache, Shared or None, ChunkInputs, key, sampling) -> (cache, Sampled). Ends
      after the inputs' `steps` steps, or once `quota` rows have ended, or all. Consumes the cache.
    shift: (cache, dropped, P, w) -> cache with ring size w, without the `dropped` oldest columns.
    take: (cache, rows) -> cache of these rows.
  """

  decode_params: Callable
  prefill: Callable
  empty: Callable
  admit: Callable
  admit_shared: Callable
  decode: Callable
  shift: Callable
  take: Callable


@functools.lru_cache(maxsize=32)
def build(model: Model, chunk: int, stop_ids: tuple[int, ...], forbid: bool,
          mesh: Mesh | None) -> Programs:
  """Returns programs for chunks of at most `chunk` steps.

  Args:
    forbid: whether stop tokens must wait until a row owes none; see `ChunkInputs.owed`.
  """
  decoder = _Decoder(decode_model(model), chunk, stop_ids, forbid,
                     mesh if mesh is not None and mesh.size > 1 else None)
  cfg, lay = decoder.model.config, decoder.lay

  def rollout_prefill(params, tokens, length):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    segments = (positions < length[:, None] - 1).astype(jnp.int32)
    cache = kv_cache.empty(cfg, *tokens.shape)
    return decoder.model.hidden(params, tokens, positions, segments, cache=cache)[1]

  def rollout_empty(rows, width, ring):
    return lay(kv_cache.empty(cfg, rows, width + ring))

  def rollout_admit(cache, prefilled, to, source, count):
    rows, width = cache.positions.shape[0], prefilled.positions.shape[1]
    filled = jnp.where(jnp.arange(len(to)) < count, to, rows)
    chosen = jnp.full(rows, -1, jnp.int32).at[filled].set(source, mode="drop")
    forgotten = (chosen >= 0)[:, None] & (jnp.arange(cache.segments.shape[1]) >= width)
    cache = cache.replace(segments=jnp.where(forgotten, 0, cache.segments))
    if decoder.mesh is not None:  # each device writes its own rows
      return lay(kv_cache.select_rows(cache, prefilled, chosen))
    return kv_cache.put_rows(cache, prefilled, to, source, count)

  def rollout_admit_shared(cache, store, prefilled, to, source, count, fresh):
    cache = cache.replace(segments=jnp.where(fresh[:, None], 0, cache.segments))
    return cache, kv_cache.put_rows(store, prefilled, to, source, count)

  def rollout_decode(params, cache, shared, inputs, key, sampling):
    return decoder.decode(params, cache, shared, inputs, key, sampling)

  def rollout_shift(cache, dropped, width, ring):
    return lay(kv_cache.shift(cache, width, dropped, width + ring))

  def rollout_take(cache, rows):
    return lay(kv_cache.take_rows(cache, rows))

  return Programs(decode_params=_decode_params(model), prefill=jax.jit(rollout_prefill),
                  empty=jax.jit(rollout_empty, static_argnums=(0, 1, 2)),
                  admit=jax.jit(rollout_admit, donate_argnums=0),
                  admit_shared=jax.jit(rollout_admit_shared, donate_argnums=(0, 1)),
                  decode=jax.jit(rollout_decode, donate_argnums=1),
                  shift=jax.jit(rollout_shift, static_argnums=(2, 3)), take=jax.jit(rollout_take))


def _decode_params(model: Model) -> Callable:
  """Returns `Programs.decode_params`. Parameters of the right dtypes pass without a copy."""

  def rollout_params(params):
    return for_decoding(params, model)[1]

  made = jax.jit(rollout_params)

  def dtypes(params):
    return jax.tree.map(_dtype_name, params)

  def decode_params(params):
    wanted = jax.eval_shape(rollout_params, params)
    return params if dtypes(params) == dtypes(wanted) else made(params)

  return decode_params


def _dtype_name(x) -> str:
  return x.dtype.name


@dataclasses.dataclass(frozen=True)
class _Decoder:
  """What is static in a chunk; `mesh` is None on one device."""

  model: Model
  chunk: int
  stop_ids: tuple[int, ...]
  forbid: bool
  mesh: Mesh | None

  def lay(self, cache: kv_cache.KVCache) -> kv_cache.KVCache:
    """Divides the rows of a cache over the devices."""
    return cache if self.mesh is None else jax.tree.map(self._lay_array, cache)

  def _lay_array(self, x):
    """Divides axis -4 of keys and values, and axis 0 of positions and segments."""
    before = (None,) * max(x.ndim - 4, 0)
    layout = PartitionSpec(*before, parallel.RULES["rows"]) if x.ndim else PartitionSpec()
    return lax.with_sharding_constraint(x, NamedSharding(self.mesh, layout))

  def decode(self, params, cache: kv_cache.KVCache, shared: Shared | None, inputs: ChunkInputs, key,
             sampling: Sampling) -> tuple[kv_cache.KVCache, Sampled]:
    """Decodes a chunk: each step feeds each row's last token and samples the next."""
    model, keys, head = self.model, row_keys(key, inputs.row_id), self.model.head(params)
    stops = jnp.asarray(self.stop_ids, jnp.int32)
    is_stop = jnp.isin(jnp.arange(model.config.vocab_size), stops)
    started, turns = _count(inputs.left > 0), inputs.given is not None
    cache = cache.replace(index=inputs.index)
    cache = _forget(cache, inputs.position) if turns else cache
    prefix = None if shared is None else kv_cache.prefix(shared.store, shared.rows, shared.prompt,
                                                         shared.lane)

    def unfinished(loop: _Loop):
      live = _count(loop.live)
      return (loop.sampled.steps < inputs.steps) & (live > 0) & (started - live < inputs.quota)

    def step(loop: _Loop) -> _Loop:
      sampled, live = loop.sampled, loop.live
      position = inputs.position + sampled.steps
      hidden, cache = model.hidden(params, loop.token[:, None], position[:, None],
                                   live[:, None].astype(jnp.int32),
                                   cache=loop.cache.replace(prefix=prefix))
      forbidden = (sampled.steps < inputs.owed)[:, None] & is_stop if self.forbid else None
      token, log_prob = sample_token(hidden[:, 0], head, keys, position + 1, sampling, forbidden)
      stop = live & jnp.isin(token, stops)
      if turns:
        given = sampled.steps < inputs.pending
        token, stop = jnp.where(given, inputs.given[:, sampled.steps], token), stop & ~given
      sampled = _append(sampled, token, log_prob, live, stop)
      live = live & ~stop & (sampled.steps < inputs.left)
      return _Loop(self.lay(cache.replace(prefix=None)), token, live, sampled)

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


def _forget(cache: kv_cache.KVCache, position) -> kv_cache.KVCache:
  """Marks as empty every cache entry at or after the token that each row feeds next.

  Such entries are of tokens that were sampled after the end of a turn and dropped.
  """
  return cache.replace(segments=jnp.where(cache.positions >= position[:, None], 0, cache.segments))


def decode_model(model: Model) -> Model:
  """Returns the same network with separate blocks.

  A scan over stacked weights would copy them in every decode step.
  """
  return dataclasses.replace(
      model, config=dataclasses.replace(model.config, scan_layers=False, remat="none"))


def for_decoding(params, model: Model):
  """Returns (model, params) that decode fast: matrices in the compute dtype, separate blocks.

  Norm scales, the router and the value head keep their dtype, because the network reads them in
  f32. Results equal those of the given model and parameters, up to rounding if layers were scanned.
  """
  dtype = jnp.dtype(model.config.compute_dtype)

  def cast(path, x):
    return x if path[-1].key in FULL_PRECISION else x.astype(dtype)

  def block(i):
    return jax.tree.map(operator.itemgetter(i), params["blocks"])

  if model.config.scan_layers:
    params = {**params, "blocks": {i: block(i) for i in range(model.config.num_layers)}}
  return decode_model(model), jax.tree_util.tree_map_with_path(cast, params)
