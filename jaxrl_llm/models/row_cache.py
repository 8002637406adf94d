"""The engine's key-value cache: each row has its own length, and its token n lies in column n.

Rows need no common index, so one may end and another take its place without moving the others.
Columns at and after a row's length may hold anything.
"""

import functools

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Int

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import kv_cache
from jaxrl_llm.models.kv_cache import KVCache, Prefix, dtype, zeros


@struct.dataclass
class RowCache:
  """Cache of T columns for B rows.

  Attributes:
    keys, values: per layer [B, K, T, head_dim], as `kv_cache.held`; or with n heads side by side,
      [B, K / n, T, n head_dim].
    length: [B] int32, tokens of a row with the one that a step adds, 0 where it adds none; None
      between chunks.
    prefix: as in `KVCache`.
  """

  keys: tuple
  values: tuple
  length: Int[Array, " B"] | None = None
  prefix: tuple[Prefix, ...] | None = None


def empty(cfg: ModelConfig, rows: int, columns: int, side: int = 1) -> RowCache:
  """Returns a cache of zeros, in `kv_cache.dtype(cfg)`, with `side` heads side by side."""
  x = zeros((rows, cfg.num_kv_heads // side, columns, side * cfg.head_dim), dtype(cfg), 3, side)
  return RowCache((x,) * cfg.num_layers, (x,) * cfg.num_layers)


def of_slots(cache: KVCache, start: int = 0) -> RowCache:
  """Returns the slots from `start` on as columns; layers must not be scanned.

  Args:
    start: a negative one counts from the end, which layers with fewer slots have in common.
  """
  keys = jax.tree.map(lambda x: x[..., start:].swapaxes(2, 3), cache.keys)
  return RowCache(keys, jax.tree.map(lambda x: x[:, :, start:], cache.values))


def window(cache: RowCache, rows: Int[Array, " C"] | None, length: Int[Array, " C"],
           position: Int[Array, " C"], columns: int, more: int,
           windows: tuple[int, ...]) -> KVCache:
  """Returns a KVCache of some rows: their first columns as slots, then `more` slots to write.

  Where layers have a window, a row's tokens are the last of these slots, and a layer has the slots
  that the next token sees.

  Args:
    rows: C of the cache's rows; None: all, in order.
    length: tokens of each of them, at most `columns`.
    position: of the token that follows a row's last one.
    columns: static, how many are copied.
    windows: of the layers, as `kv_cache.windows`.
  """
  before = columns - length if any(windows) else jnp.zeros_like(length)  # slots without a token

  def part(x, window: int, axis: int):
    x = x if any(windows) else x[:, :, :columns]
    x = x if rows is None else x.at[rows].get(mode="clip")
    x = last_columns(x, length, kv_cache.earlier(columns, window)) if any(windows) else x
    x = x.swapaxes(2, axis)  # before the pad, on which XLA's transposition is twice as slow
    return jnp.pad(x, [(0, more * (i == axis)) for i in range(x.ndim)])

  keys, values = (tuple(jax.tree.map(functools.partial(part, window=window, axis=axis), x)
                        for x, window in zip(layers, windows, strict=True))
                  for layers, axis in ((cache.keys, 3), (cache.values, 2)))
  slot = jnp.arange(columns + more)
  filled = (slot >= before[:, None]) & (slot < (before + length)[:, None])
  return KVCache(keys, values, (position - length - before)[:, None] + slot,
                 filled.astype(jnp.int32), jnp.int32(columns))


def last_columns(x: Array, length: Int[Array, " B"], count: int) -> Array:
  """Returns the columns [B, K, count, ..] before column `length` of each row of x [B, K, T, ..];
  before a row's first one they are copies of it.
  """
  column = jnp.maximum(length[:, None] - count + jnp.arange(count), 0)
  return jnp.take_along_axis(x, column[:, None, :, None], axis=2)


def put(old: Array, new: Array, to: Int[Array, " C"], source: Int[Array, " C"],
        column: Int[Array, " C"], count: Int[Array, ""]) -> Array:
  """Copies row source[i] of `new` over row to[i] of `old` from column[i] on, for i < count.

  Rows are copied one by one, so that XLA updates the cache in place.

  Args:
    old: [B, K, T, ..], one array of a cache.
    new: [M, K, t, ..]; column + t <= T.
  """

  def copy(i, old):
    row = lax.dynamic_slice_in_dim(new, source[i], 1, 0)
    return lax.dynamic_update_slice(old, row.astype(old.dtype), (to[i], 0, column[i], 0))

  return lax.fori_loop(0, count, copy, old)


def select(old: Array, new: Array, source: Int[Array, " B"]) -> Array:
  """Copies row source[b] of `new` over the first columns of row b, except where it is negative.

  The result is as with `put`, but rows may be divided over devices.
  """
  new = jnp.take(new, jnp.maximum(source, 0), axis=0).astype(old.dtype)
  head = lax.slice_in_dim(old, 0, new.shape[2], axis=2)
  head = jnp.where((source >= 0)[:, None, None, None], new, head)
  return lax.dynamic_update_slice(old, head, (0,) * old.ndim)


def prefix(prompts: RowCache, length: Int[Array, " M"], rows: Int[Array, "M G"],
           prompt: Int[Array, " B"], lane: Int[Array, " B"],
           windows: tuple[int, ...]) -> tuple[Prefix, ...]:
  """Returns per layer the Prefix of these prompts, which have `length` tokens: of a layer with a
  window, the tokens that the one after the prompt sees.
  """
  width = prompts.keys[0].shape[2]

  def of_layer(keys, values, window: int) -> Prefix:
    count = max(1, kv_cache.earlier(width, window))
    column = jnp.broadcast_to(jnp.arange(width), (len(length), width))
    if count < width:
      column = length[:, None] - count + jnp.arange(count)
      keys, values = jax.tree.map(lambda x: last_columns(x, length, count), (keys, values))
    positions = jnp.where((column >= 0) & (column < length[:, None]), column, -1)
    turned = jax.tree.map(lambda x: x.swapaxes(2, 3), keys)
    return Prefix(turned, values, positions, rows, prompt, lane)

  return tuple(map(of_layer, prompts.keys, prompts.values, windows))
