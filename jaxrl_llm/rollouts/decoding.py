"""The engine's compiled programs: prefill, admission of rows, a chunk of decode steps (chunk.py),
and changes of the cache's size.

The cache of S rows has the prompts' P columns, and after them a ring of w columns that all rows
write at one shared index (models/kv_cache.py, where a column is a slot). A row that is admitted
later than its neighbours begins further right, and the older content of its row is marked as empty.
So one scalar write serves rows of any age. Attention reads P + w columns, where w covers the oldest
row in flight; an index per row would not save any.

Shared prompts are in a separate store, once per group, and the cache is the ring only.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.rollouts import hand_over
from jaxrl_llm.rollouts.chunk import Decoder


@dataclasses.dataclass(frozen=True)
class Programs:
  """Jitted programs; each compiles once per number of rows S and ring size w that it meets.

  Attributes:
    decode_params: params -> params as `prefill` and `decode` read them, see hand_over.py.
    prefill: (params, tokens [M P], length [M]) -> cache of all prompt tokens but the last, which
      decode feeds.
    empty: (S, P, w) -> cache; static sizes.
    admit: (cache, prefilled, to [S], source [S], count) -> cache with prompt source[i] in row to[i]
      for i < count. Consumes the cache.
    admit_shared: (cache, store, prefilled, (to [M], source [M], count), fresh [S]) -> (cache,
      store) with prompt source[i] in place to[i] of the store, and the rows `fresh` of the cache
      empty. Consumes cache and store.
    decode: (params, cache, Shared or None, ChunkInputs, Draw, *, rules) -> (cache, Sampled). Ends
      after `steps` steps (of the inputs), or once `quota` rows have ended, or all. Consumes the
      cache. `rules` is static.
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
  """Returns programs for chunks of at most `chunk` steps; `forbid` as in `chunk.Decoder`."""
  decoder = Decoder(hand_over.decode_model(model), chunk, stop_ids, forbid,
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
    targets = jnp.where(jnp.arange(len(to)) < count, to, rows)
    row_source = jnp.full(rows, -1, jnp.int32).at[targets].set(source, mode="drop")
    forgotten = (row_source >= 0)[:, None] & (jnp.arange(cache.segments.shape[1]) >= width)
    cache = cache.replace(segments=jnp.where(forgotten, 0, cache.segments))
    if decoder.mesh is not None:  # each device writes its own rows
      return lay(kv_cache.select_rows(cache, prefilled, row_source))
    return kv_cache.put_rows(cache, prefilled, to, source, count)

  def rollout_admit_shared(cache, store, prefilled, moves, fresh):
    to, source, count = moves
    cache = cache.replace(segments=jnp.where(fresh[:, None], 0, cache.segments))
    return cache, kv_cache.put_rows(store, prefilled, to, source, count)

  def rollout_decode(params, cache, shared, inputs, draw, *, rules):
    return decoder.decode(params, cache, shared, inputs, draw, rules=rules)

  def rollout_shift(cache, dropped, width, ring):
    return lay(kv_cache.shift(cache, width, dropped, width + ring))

  def rollout_take(cache, rows):
    return lay(kv_cache.take_rows(cache, rows))

  return Programs(decode_params=hand_over.make(model, mesh), prefill=jax.jit(rollout_prefill),
                  empty=jax.jit(rollout_empty, static_argnums=(0, 1, 2)),
                  admit=jax.jit(rollout_admit, donate_argnums=0),
                  admit_shared=jax.jit(rollout_admit_shared, donate_argnums=(0, 1)),
                  decode=jax.jit(rollout_decode, donate_argnums=1, static_argnames="rules"),
                  shift=jax.jit(rollout_shift, static_argnums=(2, 3)), take=jax.jit(rollout_take))
