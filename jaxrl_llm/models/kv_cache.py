"""The key-value cache: keys and values of the tokens that each row has read so far.

A slot is not a position. All rows write the same slot at the same time, and each slot records, for
each row, the position and the segment of its token (segment 0: the slot is empty). Prompts of
different lengths therefore share one write index, and attention needs no other bookkeeping.

Where layers have a sliding window, the slots of a row are in the order of its positions up to the
write index, so that such a layer needs the last of them only.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Int

from jaxrl_llm.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class DecodingConfig(ModelConfig):
  """Shapes of a network that only decodes and is never trained.

  Attributes:
    cache_dtype: dtype of the cache's keys and values; int8 as `held`.
    quantization: rollout.quantization where matrices are held as int8, else `none`.
    fused: whether a layer holds its matrices of queries, keys and values as one, and those of gate
      and up.
  """

  cache_dtype: str = "float32"
  quantization: str = "none"
  fused: bool = False


def decoding(cfg: ModelConfig, **changes) -> DecodingConfig:
  """Returns the same shapes as a DecodingConfig, with these of its attributes."""
  if isinstance(cfg, DecodingConfig):
    return dataclasses.replace(cfg, **changes)
  values = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(ModelConfig)}
  return DecodingConfig(**values, **{"cache_dtype": cfg.compute_dtype, **changes})


def is_fused(cfg: ModelConfig) -> bool:
  """Returns whether layers hold fused matrices."""
  return isinstance(cfg, DecodingConfig) and cfg.fused


def dtype(cfg: ModelConfig) -> jnp.dtype:
  """Returns the dtype of a cache's keys and values: the compute dtype, unless `cfg` is a
  DecodingConfig.
  """
  return jnp.dtype(cfg.cache_dtype if isinstance(cfg, DecodingConfig) else cfg.compute_dtype)


def column_bytes(cfg: ModelConfig) -> int:
  """Returns the bytes of one token's keys and values in a cache."""
  of_head = cfg.head_dim * dtype(cfg).itemsize + (4 if dtype(cfg) == jnp.int8 else 0)
  return 2 * cfg.num_layers * cfg.num_kv_heads * of_head


def windows(cfg: ModelConfig) -> tuple[int, ...]:
  """Returns for each layer the tokens that a token attends to, itself among them; 0: all."""
  return tuple(0 if i in cfg.full_layers else cfg.window for i in range(cfg.num_layers))


def earlier(slots: int, window: int) -> int:
  """Returns how many of so many slots before a token a layer with this window reads."""
  return min(slots, window - 1) if window else slots


@struct.dataclass
class Int8:
  """Keys or values held as int8, values * scale, with a scale for each token and head.

  A product takes the scale of a key after the sum over the head's width, and that of a value
  before the sum over tokens, so none is multiplied out.

  Attributes:
    values: int8, of the shape that the keys or values have.
    scale: f32, of the same axes with 1 in place of the head's width, or n for n heads side by side.
  """

  values: Array
  scale: Array

  @property
  def shape(self) -> tuple[int, ...]:
    return self.values.shape

  @property
  def dtype(self) -> jnp.dtype:
    return self.values.dtype


def held(x: Array, dtype, axis: int) -> Array | Int8:
  """Returns keys or values as a cache of this dtype holds them.

  Args:
    axis: of the head's width. The scale of int8 is the largest |x| along it / 127.
  """
  if dtype != jnp.int8:
    return x.astype(dtype)
  x = x.astype(jnp.float32)
  scale = jnp.max(jnp.abs(x), axis, keepdims=True) / 127
  return Int8(jnp.round(x / jnp.where(scale > 0, scale, 1)).astype(dtype), scale)


def zeros(shape: tuple[int, ...], dtype, axis: int, side: int = 1) -> Array | Int8:
  """Returns zeros as `held`, with `side` heads side by side along `axis`."""
  if dtype != jnp.int8:
    return jnp.zeros(shape, dtype)
  scales = tuple(side if i == axis else size for i, size in enumerate(shape))
  return Int8(jnp.zeros(shape, dtype), jnp.zeros(scales, jnp.float32))


@struct.dataclass
class Prefix:
  """One layer's keys and values of M prompts, each stored once for all rows that begin with it.

  Attributes:
    keys: [M, K, head_dim, P], as `held`.
    values: [M, K, P, head_dim], as `held`.
    positions: [M, P] int32, in the prompt, -1 at padding. P may differ between layers.
    rows: [M, G] int32, the rows that begin with each prompt; unused places hold any row.
    prompt, lane: [B] int32, where row b is in `rows`: rows[prompt[b], lane[b]] = b.
  """

  keys: Array | Int8
  values: Array | Int8
  positions: Int[Array, "M P"]
  rows: Int[Array, "M G"]
  prompt: Int[Array, " B"]
  lane: Int[Array, " B"]


@struct.dataclass
class KVCache:
  """Cache of S slots for B rows.

  Attributes:
    keys: per layer [B, K, head_dim, S], as `held`, transposed because q k^T is then faster on CPU.
      With scanned layers, one array with a leading axis N. A layer with a window may have fewer
      than S slots: the last ones.
    values: per layer [B, K, S, head_dim], as `held`; with scanned layers, one array with a leading
      axis N.
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

  def layers(*shape: int, axis: int):
    if cfg.scan_layers:
      return zeros((cfg.num_layers, rows, cfg.num_kv_heads, *shape), dtype(cfg), axis + 1)
    return (zeros((rows, cfg.num_kv_heads, *shape), dtype(cfg), axis),) * cfg.num_layers

  keys, values = layers(cfg.head_dim, slots, axis=2), layers(slots, cfg.head_dim, axis=3)
  none = jnp.zeros((rows, slots), jnp.int32)
  return KVCache(keys, values, none, none, jnp.int32(0))


def grow(cache: KVCache, slots: int, windows: tuple[int, ...] = ()) -> KVCache:
  """Returns the same content in a cache of `slots` slots, at least as many as now.

  Args:
    windows: of all layers, or of one that stands for scanned ones. All slots are written then, and
      a layer with a window keeps those that the next token sees. Empty: every layer keeps all.
  """
  more = slots - cache.positions.shape[1]

  def padded(x: Array, axis: int, window: int = 0) -> Array:
    size = x.shape[axis]
    x = lax.slice_in_dim(x, size - earlier(size, window), size, axis=axis)
    return jnp.pad(x, [(0, more * (i == axis % x.ndim)) for i in range(x.ndim)])

  def resized(layers, axis: int):
    if not isinstance(layers, tuple):
      return resized((layers,), axis)[0]
    return tuple(jax.tree.map(functools.partial(padded, axis=axis, window=window), x)
                 for x, window in zip(layers, windows or (0,) * len(layers), strict=False))

  return cache.replace(keys=resized(cache.keys, -1), values=resized(cache.values, -2),
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


def write(keys: Array | Int8, values: Array | Int8, new_keys: Array, new_values: Array,
          index: Array) -> tuple[Array | Int8, Array | Int8]:
  """Returns one layer's (keys, values) with new ones written from slot `index` on.

  Args:
    keys, values: of a KVCache.
    new_keys: [B, K, head_dim, T]; they are `held` in the cache's dtype.
    new_values: [B, K, T, head_dim], too.
    index: scalar int32.
  """
  def entered(old, new, axis: int):
    place = (0, 0, index, 0) if axis == 3 else (0, 0, 0, index)
    return jax.tree.map(functools.partial(lax.dynamic_update_slice, start_indices=place), old,
                        held(new, old.dtype, axis))

  return entered(keys, new_keys, 2), entered(values, new_values, 3)
