"""Keys and values of what a row has read so far.

A slot is not a position: all rows write the same slot at the same time, while each slot records, per row, which
position it holds and which segment it belongs to (0: nothing). Prompts of different lengths therefore share one write
index, and attention needs no other bookkeeping.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Int

from jaxrl_llm.config import ModelConfig


@struct.dataclass
class KVCache:
  """Cache of S slots for B rows.

  Attributes:
    keys: per layer [B, K, head_dim, S] (transposed: the faster operand of q k^T on CPU); one array with a leading N
      axis where layers are scanned.
    values: per layer [B, K, S, head_dim].
    positions, segments: [B, S] int32.
    index: int32 scalar, the next free slot.
  """

  keys: tuple
  values: tuple
  positions: Int[Array, "B S"]
  segments: Int[Array, "B S"]
  index: Int[Array, ""]


def empty(cfg: ModelConfig, rows: int, slots: int) -> KVCache:
  """A cache without content, in the compute dtype."""
  dtype = jnp.dtype(cfg.compute_dtype)
  key = jnp.zeros((rows, cfg.num_kv_heads, cfg.head_dim, slots), dtype)
  value = jnp.zeros((rows, cfg.num_kv_heads, slots, cfg.head_dim), dtype)
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
  return cache.replace(keys=layers(cache.keys), values=layers(cache.values), positions=rows(cache.positions),
                       segments=rows(cache.segments))


def note(cache: KVCache, positions: Int[Array, "B T"], segments: Int[Array, "B T"]) -> KVCache:
  """Record what the next T slots hold, and move the write index behind them."""
  write = lambda old, new: lax.dynamic_update_slice(old, new.astype(old.dtype), (0, cache.index))
  return cache.replace(positions=write(cache.positions, positions), segments=write(cache.segments, segments),
                       index=cache.index + positions.shape[1])


def write(keys: Array, values: Array, new_keys: Array, new_values: Array, index: Array) -> tuple[Array, Array]:
  """One layer's cache with [B, K, head_dim, T] keys and [B, K, T, head_dim] values entered from slot `index` on."""
  keys = lax.dynamic_update_slice(keys, new_keys.astype(keys.dtype), (0, 0, 0, index))
  return keys, lax.dynamic_update_slice(values, new_values.astype(values.dtype), (0, 0, index, 0))
