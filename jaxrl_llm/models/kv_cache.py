"""The key-value cache: keys and values of the tokens that each row has read so far.

A slot is not a position. All rows write the same slot at the same time, and each slot records, for
each row, the position and the segment of its token (segment 0: the slot is empty). Prompts of
different lengths therefore share one write index, and attention needs no other bookkeeping.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int

from jaxrl_llm.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class DecodingConfig(ModelConfig):
  """Shapes of a network that only decodes and is never trained.

  Attributes:
    cache_dtype: dtype of the cache's keys and values.
    quantization: rollout.quantization where matrices are held as int8, else `none`.
  """

  cache_dtype: str = "float32"
  quantization: str = "none"


def dtype(cfg: ModelConfig) -> jnp.dtype:
  """Returns the dtype of a cache's keys and values: the compute dtype, unless `cfg` is a
  DecodingConfig.
  """
  return jnp.dtype(cfg.cache_dtype if isinstance(cfg, DecodingConfig) else cfg.compute_dtype)


@struct.dataclass
class Prefix:
  """One layer's keys and values of M prompts, each stored once for all rows that begin with it.

  Attributes:
    keys: [M, K, head_dim, P], in the cache's dtype.
    values: [M, K, P, head_dim], in the cache's dtype.
    visible: [M, P] bool, True on the prompt's tokens, False on padding.
    rows: [M, G] int32, the rows that begin with each prompt; unused places hold any row.
    prompt, lane: [B] int32, where row b is in `rows`: rows[prompt[b], lane[b]] = b.
  """

  keys: Array
  values: Array
  visible: Bool[Array, "M P"]
  rows: Int[Array, "M G"]
  prompt: Int[Array, " B"]
  lane: Int[Array, " B"]


@struct.dataclass
class KVCache:
  """Cache of S slots for B rows.

  Attributes:
    keys: per layer [B, K, head_dim, S], transposed because q k^T is then faster on CPU. With
      scanned layers, one array with a leading axis N.
    values: per layer [B, K, S, head_dim]; with scanned layers, one array with a leading axis N.
    positions: [B, S] int32, position of each slot's token; meaningless where the slot is empty.
    segments: [B, S] int32, segment of each slot's token; 0 where the slot is empty.
    index: scalar int32, the next slot to write.
    prefix: per layer the prompts that rows attend to in addition to their slots; None without
      shared prompts, and always with scanned layers.
  """

  keys: tuple
  values: tuple
  positions: Int[Array, "B S"]
  segments: Int[Array, "B S"]
  index: Int[Array, ""]
  prefix: "tuple[Prefix, ...] | None" = None


def empty(cfg: ModelConfig, rows: int, slots: int) -> KVCache:
  """Returns a cache without content, in `dtype(cfg)`."""

  def layers(x: Array):
    if cfg.scan_layers:
      return jnp.broadcast_to(x, (cfg.num_layers, *x.shape))
    return (x,) * cfg.num_layers

  key = jnp.zeros((rows, cfg.num_kv_heads, cfg.head_dim, slots), dtype(cfg))
  value = jnp.zeros((rows, cfg.num_kv_heads, slots, cfg.head_dim), dtype(cfg))
  none = jnp.zeros((rows, slots), jnp.int32)
  return KVCache(layers(key), layers(value), none, none, jnp.int32(0))


def grow(cache: KVCache, slots: int) -> KVCache:
  """Returns the same content in a cache of `slots` slots, at least as many as now."""
  more = slots - cache.positions.shape[1]

  def padded(x: Array, axis: int) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, more)
    return jnp.pad(x, widths)

  return cache.replace(keys=jax.tree.map(lambda x: padded(x, -1), cache.keys),
                       values=jax.tree.map(lambda x: padded(x, -2), cache.values),
                       positions=padded(cache.positions, -1), segments=padded(cache.segments, -1))


def repeat_rows(cache: KVCache, times: int, *, stacked: bool) -> KVCache:
  """Returns each row `times` times, contiguous: a prompt's cache for all members of its group.

  Args:
    stacked: whether the layers are scanned.
  """
  axis = 1 if stacked else 0
  layers = functools.partial(jnp.repeat, repeats=times, axis=axis)
  rows = functools.partial(jnp.repeat, repeats=times, axis=0)
  return cache.replace(keys=jax.tree.map(layers, cache.keys),
                       values=jax.tree.map(layers, cache.values), positions=rows(cache.positions),
                       segments=rows(cache.segments))


def record(cache: KVCache, positions: Int[Array, "B T"], segments: Int[Array, "B T"]) -> KVCache:
  """Records the tokens of the next T slots, and moves the write index past them."""

  def written(old: Array, new: Array) -> Array:
    return lax.dynamic_update_slice(old, new.astype(old.dtype), (0, cache.index))

  return cache.replace(positions=written(cache.positions, positions),
                       segments=written(cache.segments, segments),
                       index=cache.index + positions.shape[1])


def write(keys: Array, values: Array, new_keys: Array, new_values: Array,
          index: Array) -> tuple[Array, Array]:
  """Returns one layer's (keys, values) with new ones written from slot `index` on.

  Args:
    keys, values: arrays of a KVCache.
    new_keys: [B, K, head_dim, T], cast to the cache's dtype.
    new_values: [B, K, T, head_dim], cast to the cache's dtype.
    index: scalar int32.
  """
  keys = lax.dynamic_update_slice(keys, new_keys.astype(keys.dtype), (0, 0, 0, index))
  return keys, lax.dynamic_update_slice(values, new_values.astype(values.dtype), (0, 0, index, 0))
