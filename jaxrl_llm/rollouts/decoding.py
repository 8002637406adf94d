"""The engine's compiled programs: prefill, admission of rows, a chunk of decode steps, and changes
of the cache's size.

The cache of S rows has the prompts' P slots, and behind them a ring of w slots that all rows write
at one shared index (models/kv_cache.py). A row admitted later than its neighbours merely begins
further right; what it had in its place before is marked as nothing. So one scalar write serves rows
of any age, and attention reads P + w slots where w covers the oldest row alive, exactly what an
index per row would need.

Where prompts are shared, they lie in a store of their own, once per group, and the cache is the
ring alone.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm import parallel
from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.rollouts.drawing import draw, row_keys
from jaxrl_llm.types import Sampling

# leaves that the network reads in f32, by their last key
FULL_PRECISION = ("scale", "router", "value_head")


@struct.dataclass
class Slots:
  """What a chunk needs to know of the rows in flight, made on the host.

  Attributes:
    token: [S] int32, the row's last token, which the first step feeds.
    position: [S] int32, of that token in its row.
    left: [S] int32, tokens that may still follow this one; 0 marks an empty slot, or a row that
      waits for a tool.
    owed: [S] int32, tokens that must come before a stop token may.
    row_id: [S] int32.
    given: [S, chunk] int32, tokens that follow this one without being drawn; None where rows have
      one turn.
    pending: [S] int32, how many of them there are, or None.
  """

  token: Int[Array, " S"]
  position: Int[Array, " S"]
  left: Int[Array, " S"]
  owed: Int[Array, " S"]
  row_id: Int[Array, " S"]
  given: Int[Array, "S C"] | None = None
  pending: Int[Array, " S"] | None = None


@struct.dataclass
class Shared:
  """Which prompt of the store each row attends to; as in `kv_cache.Prefix`.

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
class Drawn:
  """What a chunk of `steps` steps drew; row b's tokens are the first count[b] columns, the given
  ones among them.

  Attributes:
    tokens, log_probs: [S, chunk] int32, f32; log-probs of given tokens mean nothing.
    count: [S] int32.
    stopped: [S] bool, the last of them is a stop token.
    steps: int32 scalar, ring slots written.
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
  drawn: Drawn


@dataclasses.dataclass(frozen=True)
class Programs:
  """Jitted; each compiles once per number of rows S and ring size w that it meets.

  Attributes:
    prepare: params -> params as `decode` reads them; the very same where that is what they are.
    prefill: (params, tokens [M P], length [M]) -> cache of all prompt tokens but the last, which
      decode feeds.
    empty: (S, P, w) -> cache; static sizes.
    admit: (cache, prefilled, to [S], source [S], count) -> cache; prompt source[i] into row to[i]
      for i < count. Consumes the cache.
    admit_shared: (cache, store, prefilled, to [M], source [M], count, fresh [S]) -> (cache, store);
      prompt source[i] into the store's to[i], and the rows `fresh` begin anew. Consumes cache and
      store.
    decode: (params, cache, Shared or None, index, Slots, key, sampling, steps, quota) -> (cache,
      Drawn). Ends after `steps` steps, or once `quota` rows have ended, or all. Consumes the cache.
    shift: (cache, dropped, P, w) -> cache with ring size w, less the oldest `dropped` ring slots.
    take: (cache, rows) -> cache of these rows.
  """

  prepare: Callable
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
  """Programs for chunks of at most `chunk` steps; `forbid`: stop tokens wait until a row owes none.
  """
  decoder = decode_model(model)
  sharded = mesh is not None and mesh.size > 1

  def lay(cache):
    return jax.tree.map(lambda x: lax.with_sharding_constraint(x, _by_rows(mesh, x.ndim)),
                        cache) if sharded else cache

  def rollout_prepare(params):
    return prepare_for_decode(params, model)[1]

  def rollout_prefill(params, tokens, length):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    segments = (positions < length[:, None] - 1).astype(jnp.int32)
    cache = kv_cache.empty(decoder.config, *tokens.shape)
    return decoder.hidden(params, tokens, positions, segments, cache=cache)[1]

  def rollout_empty(rows, width, ring):
    return lay(kv_cache.empty(decoder.config, rows, width + ring))

  def rollout_admit(cache, prefilled, to, source, count):
    rows, width = cache.positions.shape[0], prefilled.positions.shape[1]
    chosen = jnp.full(rows, -1, jnp.int32).at[jnp.where(jnp.arange(len(to)) < count, to,
                                                        rows)].set(source, mode="drop")
    forgotten = (chosen >= 0)[:, None] & (jnp.arange(cache.segments.shape[1]) >= width)
    cache = cache.replace(segments=jnp.where(forgotten, 0, cache.segments))
    if sharded:  # each device writes its own rows
      return lay(kv_cache.select_rows(cache, prefilled, chosen))
    return kv_cache.put_rows(cache, prefilled, to, source, count)

  def rollout_admit_shared(cache, store, prefilled, to, source, count, fresh):
    cache = cache.replace(segments=jnp.where(fresh[:, None], 0, cache.segments))
    return cache, kv_cache.put_rows(store, prefilled, to, source, count)

  def rollout_decode(params, cache, shared, index, slots, key, sampling, steps, quota):
    return _decode(params, cache.replace(index=index), shared, slots, key, sampling, steps, quota,
                   model=decoder, chunk=chunk, stop_ids=stop_ids, forbid=forbid, lay=lay)

  def rollout_shift(cache, dropped, width, ring):
    return lay(kv_cache.shift(cache, width, dropped, width + ring))

  def rollout_take(cache, rows):
    return lay(kv_cache.take_rows(cache, rows))

  prepare = jax.jit(rollout_prepare)

  def prepared(params):
    kinds = lambda tree: jax.tree.map(lambda x: x.dtype.name, tree)
    return params if kinds(params) == kinds(jax.eval_shape(rollout_prepare,
                                                           params)) else prepare(params)

  return Programs(prepare=prepared, prefill=jax.jit(rollout_prefill),
                  empty=jax.jit(rollout_empty, static_argnums=(0, 1, 2)),
                  admit=jax.jit(rollout_admit, donate_argnums=0),
                  admit_shared=jax.jit(rollout_admit_shared, donate_argnums=(0, 1)),
                  decode=jax.jit(rollout_decode, donate_argnums=1),
                  shift=jax.jit(rollout_shift, static_argnums=(2, 3)), take=jax.jit(rollout_take))


def _by_rows(mesh: Mesh, ndim: int) -> NamedSharding:
  """Rows of a cache array over the devices: axis -4 of keys and values, 0 of positions and
  segments.
  """
  if ndim == 0:
    return parallel.replicated(mesh)
  before = (None,) * (ndim - 4 if ndim >= 4 else 0)
  return NamedSharding(mesh, PartitionSpec(*before, parallel.RULES["rows"]))


def _decode(params, cache, shared: Shared | None, slots: Slots, key, sampling: Sampling, steps,
            quota, *, model, chunk, stop_ids, forbid, lay):
  """(cache, Drawn): one step feeds each row's last token and draws the next."""
  keys, head = row_keys(key, slots.row_id), model.head(params)
  rows, stops = len(slots.token), jnp.asarray(stop_ids, jnp.int32)
  is_stop = jnp.isin(jnp.arange(model.config.vocab_size), stops)
  count_live = lambda live: jnp.sum(live, dtype=jnp.int32)
  started = count_live(slots.left > 0)
  turns = slots.given is not None
  cache = _forget(cache, slots.position) if turns else cache
  prefix = None if shared is None else kv_cache.prefix(shared.store, shared.rows, shared.prompt,
                                                       shared.lane)

  def on(loop: _Loop):
    live = count_live(loop.live)
    return (loop.drawn.steps < steps) & (live > 0) & (started - live < quota)

  def step(loop: _Loop) -> _Loop:
    drawn, live = loop.drawn, loop.live
    position = slots.position + drawn.steps
    hidden, cache = model.hidden(params, loop.token[:, None], position[:, None],
                                 live[:, None].astype(jnp.int32),
                                 cache=loop.cache.replace(prefix=prefix))
    forbidden = (drawn.steps < slots.owed)[:, None] & is_stop if forbid else None
    token, log_prob = draw(hidden[:, 0], head, keys, position + 1, sampling, forbidden)
    stop = live & jnp.isin(token, stops)
    if turns:
      given = drawn.steps < slots.pending
      token, stop = jnp.where(given, slots.given[:, drawn.steps], token), stop & ~given
    put = lambda old, new: lax.dynamic_update_slice(old, new[:, None], (0, drawn.steps))
    drawn = Drawn(put(drawn.tokens, token), put(drawn.log_probs, log_prob), drawn.count + live,
                  drawn.stopped | stop, drawn.steps + 1)
    return _Loop(lay(cache.replace(prefix=None)), token, live & ~stop & (drawn.steps < slots.left),
                 drawn)

  none = Drawn(jnp.zeros((rows, chunk), jnp.int32), jnp.zeros((rows, chunk), jnp.float32),
               jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool), jnp.int32(0))
  end = lax.while_loop(on, step, _Loop(cache, slots.token, slots.left > 0, none))
  return end.cache, end.drawn


def _forget(cache: kv_cache.KVCache, position) -> kv_cache.KVCache:
  """The cache without what rows have from the token on that they feed next: what was drawn behind
  the end of a turn.
  """
  return cache.replace(segments=jnp.where(cache.positions >= position[:, None], 0, cache.segments))


def decode_model(model: Model) -> Model:
  """The same network with its blocks one by one: a scan over stacked weights copies them in every
  step.
  """
  return dataclasses.replace(
      model, config=dataclasses.replace(model.config, scan_layers=False, remat="none"))


def prepare_for_decode(params, model: Model):
  """(model, params) for decoding: matrices in the compute dtype once, and no longer stacked over
  the layers.

  Norm scales, the router and the value head keep their dtype: the network reads them in f32. The
  results are those of the given model and parameters, up to rounding where layers were scanned.
  """
  dtype = jnp.dtype(model.config.compute_dtype)
  cast = lambda path, x: x if path[-1].key in FULL_PRECISION else x.astype(dtype)
  if model.config.scan_layers:
    stacked = params["blocks"]
    blocks = {i: jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(model.config.num_layers)}
    params = {**params, "blocks": blocks}
  return decode_model(model), jax.tree_util.tree_map_with_path(cast, params)
