"""Keys and values of what a row has read so far.

A slot is not a position: all rows write the same slot at the same time, while each slot records,
per row, which position it holds and which segment it belongs to (0: nothing). Prompts of different
lengths therefore share one write index, and attention needs no other bookkeeping.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int

from jaxrl_llm.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class CachedConfig(ModelConfig):
  """Shapes of a network whose cache has a dtype of its own; training never meets one."""

  cache_dtype: str = "float32"


def dtype(cfg: ModelConfig) -> jnp.dtype:
  """Of a cache's keys and values: the compute dtype, unless the config names another."""
  return jnp.dtype(cfg.cache_dtype if isinstance(cfg, CachedConfig) else cfg.compute_dtype)


@struct.dataclass
class Prefix:
  """One layer's keys and values of M prompts, each kept once for all rows that begin with it.

  Attributes:
    keys: [M, K, head_dim, P];  values: [M, K, P, head_dim].
    visible: [M, P] bool, what the prompt's rows see.
    rows: [M, G] int32, the rows of each prompt; where it has fewer, any row.
    prompt, lane: [B] int32, a row's place in `rows`.
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
    keys: per layer [B, K, head_dim, S] (transposed: the faster operand of q k^T on CPU); one array
      with a leading N axis where layers are scanned.
    values: per layer [B, K, S, head_dim].
    positions, segments: [B, S] int32.
    index: int32 scalar, the next free slot.
    prefix: per layer what rows attend to beside their slots, or None. Layers that are scanned have
      none.
  """

  keys: tuple
  values: tuple
  positions: Int[Array, "B S"]
  segments: Int[Array, "B S"]
  index: Int[Array, ""]
  prefix: "tuple[Prefix, ...] | None" = None


def empty(cfg: ModelConfig, rows: int, slots: int) -> KVCache:
  """A cache without content, in `dtype(cfg)`."""
  key = jnp.zeros((rows, cfg.num_kv_heads, cfg.head_dim, slots), dtype(cfg))
  value = jnp.zeros((rows, cfg.num_kv_heads, slots, cfg.head_dim), dtype(cfg))
  stack = (lambda x: jnp.broadcast_to(x, (cfg.num_layers, *x.shape))) if cfg.scan_layers else (
      lambda x: (x,) * cfg.num_layers)
  none = jnp.zeros((rows, slots), jnp.int32)
  return KVCache(stack(key), stack(value), none, none, jnp.int32(0))


def grow(cache: KVCache, slots: int) -> KVCache:
  """The same content in a cache of `slots` slots."""
  more = slots - cache.positions.shape[1]
  pad = lambda x, axis: jnp.pad(x, [(0, more if i == axis % x.ndim else 0) for i in range(x.ndim)])
  return cache.replace(
      keys=jax.tree.map(lambda x: pad(x, -1), cache.keys),
      values=jax.tree.map(lambda x: pad(x, -2), cache.values),
      positions=pad(cache.positions, 1), segments=pad(cache.segments, 1))


def repeat_rows(cache: KVCache, times: int, *, stacked: bool) -> KVCache:
  """Each row `times` times, contiguous: a prompt's cache for all members of its group."""
  axis = 1 if stacked else 0
  layers = lambda tree: jax.tree.map(lambda x: jnp.repeat(x, times, axis=axis), tree)
  rows = lambda x: jnp.repeat(x, times, axis=0)
  return cache.replace(keys=layers(cache.keys), values=layers(cache.values),
                       positions=rows(cache.positions), segments=rows(cache.segments))


def note(cache: KVCache, positions: Int[Array, "B T"], segments: Int[Array, "B T"]) -> KVCache:
  """Record what the next T slots hold, and move the write index behind them."""
  write = lambda old, new: lax.dynamic_update_slice(old, new.astype(old.dtype), (0, cache.index))
  return cache.replace(positions=write(cache.positions,
                                       positions), segments=write(cache.segments, segments),
                       index=cache.index + positions.shape[1])


def write(keys: Array, values: Array, new_keys: Array, new_values: Array,
          index: Array) -> tuple[Array, Array]:
  """One layer's cache with [B, K, head_dim, T] keys and [B, K, T, head_dim] values entered from
  slot `index` on.
  """
  keys = lax.dynamic_update_slice(keys, new_keys.astype(keys.dtype), (0, 0, 0, index))
  return keys, lax.dynamic_update_slice(values, new_values.astype(values.dtype), (0, 0, index, 0))


def shift(cache: KVCache, start: int, dropped: Int[Array, ""], slots: int) -> KVCache:
  """A cache of `slots` slots: those before `start`, then those from start + dropped on; the rest is
  empty.

  `dropped` is traced, at most the slots behind `start`; the write index moves with what it follows.
  """

  def moved(x, axis):
    axis %= x.ndim
    ring = lax.slice_in_dim(x, start, None, axis=axis)
    ring = jnp.pad(ring, [(0, slots - start if i == axis else 0) for i in range(x.ndim)])
    return lax.concatenate([lax.slice_in_dim(x, 0, start, axis=axis),
                            lax.dynamic_slice_in_dim(ring, dropped, slots - start, axis)], axis)

  return cache.replace(keys=jax.tree.map(lambda x: moved(x, -1), cache.keys),
                       values=jax.tree.map(lambda x: moved(x, -2),
                                           cache.values), positions=moved(cache.positions, 1),
                       segments=moved(cache.segments, 1), index=cache.index - dropped)


def take_rows(cache: KVCache, rows: Int[Array, " C"]) -> KVCache:
  """The cache of these rows alone, layers stacked or not."""
  layers = lambda tree: jax.tree.map(lambda x: jnp.take(x, rows, axis=-4), tree)
  return cache.replace(keys=layers(cache.keys), values=layers(cache.values),
                       positions=cache.positions[rows], segments=cache.segments[rows])


def put_rows(cache: KVCache, other: KVCache, to: Int[Array, " C"], source: Int[Array, " C"],
             count: Int[Array, ""]) -> KVCache:
  """Row source[i] of `other` over the first slots of row to[i], for i < count; each layer's rows
  one by one, in place.

  Every slot behind the other cache's is left as it is.
  """

  def copy(old, new, i, axis):
    at = [0] * old.ndim
    at[axis] = to[i]
    return lax.dynamic_update_slice(
        old,
        lax.dynamic_slice_in_dim(new, source[i], 1, axis).astype(old.dtype), at)

  def body(i, cache):
    layers = lambda old, new: jax.tree.map(lambda x, y: copy(x, y, i, x.ndim - 4), old, new)
    return cache.replace(keys=layers(cache.keys,
                                     other.keys), values=layers(cache.values, other.values),
                         positions=copy(cache.positions, other.positions, i,
                                        0), segments=copy(cache.segments, other.segments, i, 0))

  return lax.fori_loop(0, count, body, cache)


def select_rows(cache: KVCache, other: KVCache, source: Int[Array, " B"]) -> KVCache:
  """As `put_rows` with row source[b] of `other` for row b, or none where it is negative; rows may
  be sharded.
  """

  def copy(old, new, row_axis, slot_axis):
    shape = [1] * old.ndim
    shape[row_axis] = -1
    new = jnp.take(new, jnp.maximum(source, 0), axis=row_axis).astype(old.dtype)
    head = lax.slice_in_dim(old, 0, new.shape[slot_axis], axis=slot_axis % old.ndim)
    head = jnp.where((source >= 0).reshape(shape), new, head)
    return lax.dynamic_update_slice(old, head, (0,) * old.ndim)

  layer = lambda slot_axis: lambda old, new: copy(old, new, old.ndim - 4, slot_axis)
  return cache.replace(keys=jax.tree.map(layer(-1), cache.keys, other.keys),
                       values=jax.tree.map(layer(-2), cache.values, other.values),
                       positions=copy(cache.positions, other.positions, 0, 1),
                       segments=copy(cache.segments, other.segments, 0, 1))


def prefix(prompts: KVCache, rows: Int[Array, "M G"], prompt: Int[Array, " B"],
           lane: Int[Array, " B"]) -> tuple:
  """Per layer the Prefix of these prompts' cache, whose layers are not stacked."""
  return tuple(Prefix(keys, values, prompts.segments > 0, rows, prompt, lane)
               for keys, values in zip(prompts.keys, prompts.values, strict=True))
