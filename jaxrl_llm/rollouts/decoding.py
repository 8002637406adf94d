"""The engine's compiled programs: prefill, admission of rows, and a chunk of decode steps
(chunk.py).

The cache has a row for each slot, with a length of its own (models/row_cache.py). Shared prompts
are in a separate store, once per group, and a row has the columns of its completion only.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxrl_llm.models import Model, kv_cache, live_attention, row_cache
from jaxrl_llm.rollouts import hand_over
from jaxrl_llm.rollouts.chunk import Decoder


@dataclasses.dataclass(frozen=True)
class Programs:
  """Jitted programs; each compiles once per size that it meets.

  Attributes:
    decode_params: params -> params as `prefill` and `decode` read them, see hand_over.py.
    prefill: (params, tokens [M P], length [M]) -> cache of all prompt tokens but the last, which
      decode feeds.
    empty: (S, T, n) -> cache of S rows and T columns, with n heads side by side; static sizes.
    admit: (cache, prefilled, to [S], source [S], count) -> cache with prompt source[i] in row to[i]
      for i < count. Consumes the cache.
    decode: (params, cache, Shared or None, ChunkInputs, Draw, *, rules) -> (cache, Sampled). Ends
      after `steps` steps (of the inputs), or once `quota` rows have ended, or all. Consumes the
      cache. `rules` is static.
  """

  decode_params: Callable
  prefill: Callable
  empty: Callable
  admit: Callable
  decode: Callable


@functools.lru_cache(maxsize=32)
def build(model: Model, chunk: int, stop_ids: tuple[int, ...], forbid: bool,
          mesh: Mesh | None, kernel: bool = False) -> Programs:
  """Returns programs for chunks of at most `chunk` steps; `forbid`, `kernel` as in `chunk.Decoder`.
  """
  decoder = Decoder(hand_over.decode_model(model), chunk, stop_ids, forbid,
                    mesh if mesh is not None and mesh.size > 1 else None, kernel)
  cfg, lay = decoder.model.config, decoder.lay

  def rollout_prefill(params, tokens, length):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    segments = (positions < length[:, None] - 1).astype(jnp.int32)
    cache = kv_cache.empty(cfg, *tokens.shape)
    cache = decoder.model.hidden(params, tokens, positions, segments, cache=cache)[1]
    return lay(row_cache.of_slots(cache))

  def rollout_empty(rows, columns, side):
    return lay(row_cache.empty(cfg, rows, columns, side))

  def rollout_admit(cache, prefilled, to, source, count):
    rows, zeros = cache.keys[0].shape[0], jnp.zeros_like(to)
    side = cache.keys[0].shape[-1] // cfg.head_dim
    targets = jnp.where(jnp.arange(len(to)) < count, to, rows)
    row_source = jnp.full(rows, -1, jnp.int32).at[targets].set(source, mode="drop")

    def enter(old, new):
      new = live_attention.join(new, side)
      if decoder.mesh is None:
        return row_cache.put(old, new, to, source, zeros, count)
      return row_cache.select(old, new, row_source)  # each device writes its own rows

    return lay(jax.tree.map(enter, cache, prefilled))

  def rollout_decode(params, cache, shared, inputs, draw, *, rules):
    return decoder.decode(params, cache, shared, inputs, draw, rules=rules)

  return Programs(decode_params=hand_over.make(model, mesh), prefill=jax.jit(rollout_prefill),
                  empty=jax.jit(rollout_empty, static_argnums=(0, 1, 2)),
                  admit=jax.jit(rollout_admit, donate_argnums=0),
                  decode=jax.jit(rollout_decode, donate_argnums=1, static_argnames="rules"))
