"""The kernel of live_attention.py (Pallas, TPU).

Its grid is the list of blocks of columns in which rows have tokens, row by row, and has a dynamic
size: slots without a row and columns without a token cost no step. On chips with two cores, each
has half of the kv-heads. The new token enters the sum from registers, and the kernel writes the
tile of columns in which it lies into the cache's own buffer.

Shapes: B rows, K kv-heads, G query heads of each, d head width, T columns.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from jaxrl_llm.models.kv_cache import Int8
from jaxrl_llm.models.live_attention import LANES, NAME, TILE_BYTES, Chip, LiveRows

LOWEST = -1e30


def attend_and_write(queries, new: tuple, cached: tuple, rows: LiveRows, block: int, chip: Chip):
  """Attends to a row's columns and its new token, which it writes at column length - 1.

  Args:
    queries: [B, K, G, d], scaled.
    new: keys and values of the new tokens, [B, K, 1, d] each, as `kv_cache.held`.
    cached: keys and values [B, K, T, d], as `held`; columns from length - 1 on may hold anything,
      NaN too.
    rows: of one device. A row of length 0 has outputs of 0.
    block: columns of a block; it divides T.

  Returns:
    (outputs [B, K, G, d] f32, log of the sum of exp(scores) [B, K, G, 1] f32, keys, values).
  """
  arrays, structure = jax.tree.flatten((cached, new))
  # Scales lie as they are read: columns along the lanes. So XLA lays them out, too.
  axes = (2, 3) * 2 if isinstance(cached[0], Int8) else (2, 2)
  arrays = [x if axis == 2 else x.swapaxes(2, 3) for x, axis in zip(arrays, 2 * axes, strict=True)]
  cached, new = arrays[:len(axes)], arrays[len(axes):]
  places = [Columns(axis, TILE_BYTES // x.dtype.itemsize if axis == 2 else LANES)
            for x, axis in zip(cached, axes, strict=True)]
  group, size = queries.shape[2:]
  heads = cached[0].shape[1] // chip.cores

  def row_at(core, step, row, number, *_):
    return row[step], core, 0, 0

  def block_at(core, step, row, number, *_):
    return row[step], core, number[step], 0

  def scales_at(core, step, row, number, *_):
    return row[step], core, 0, number[step]

  def of_row(*shape):
    return pl.BlockSpec((1, heads, *shape), row_at)

  def of_block(place, x):
    return pl.BlockSpec((1, heads, *place.shape(x, block)),
                        block_at if place.axis == 2 else scales_at)

  anywhere = tuple(pl.BlockSpec(memory_space=pl.ANY) for _ in cached)
  scratch = [pltpu.VMEM((heads, group, width), jnp.float32) for width in (1, 1, size)]
  tiles = tuple(pltpu.VMEM((heads, *place.shape(x, place.tile)), x.dtype)
                for place, x in zip(places, cached, strict=True))
  spec = pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=4, grid=(chip.cores, rows.total[0]),
      in_specs=[of_row(group, size), tuple(of_row(*x.shape[2:]) for x in new),
                tuple(map(of_block, places, cached))],
      out_specs=[of_row(group, size), of_row(group, 1), anywhere],
      scratch_shapes=[*scratch, tiles, pltpu.SMEM((1,), jnp.int32),
                      pltpu.SemaphoreType.DMA((len(cached),))])
  shapes = [jax.ShapeDtypeStruct(queries.shape, jnp.float32),
            jax.ShapeDtypeStruct((*queries.shape[:3], 1), jnp.float32),
            tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in cached)]
  out, log_sum, cached = pl.pallas_call(
      functools.partial(_kernel, block, places), grid_spec=spec, interpret=chip.interpret,
      name=NAME, out_shape=shapes,
      input_output_aliases={5 + len(cached) + i: 2 + i for i in range(len(cached))},
      compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
  )(rows.row, rows.number, rows.length, rows.first, queries, tuple(new), tuple(cached))
  cached = [x if axis == 2 else x.swapaxes(2, 3) for x, axis in zip(cached, axes, strict=True)]
  some = (rows.length > 0)[:, None, None, None]
  (keys, values), _ = jax.tree.unflatten(structure, cached + new)
  return jnp.where(some, out, 0.0), jnp.where(some, log_sum, LOWEST), keys, values


def wide(queries: Float[Array, "B K G d"], side: int) -> Float[Array, "B k g D"]:
  """Returns queries of `side` heads side by side, [B, K / n, n G, n d]: zeros at other heads."""
  if side == 1:
    return queries
  rows, heads, group, size = queries.shape
  split_heads = queries.reshape(rows, heads // side, side, group, 1, size)
  mine = jnp.eye(side, dtype=queries.dtype)[:, None, :, None]
  return (split_heads * mine).reshape(rows, heads // side, side * group, side * size)


def narrow(outputs: Float[Array, "B k g D"], side: int) -> Float[Array, "B K G d"]:
  """Returns of each head of `wide` its own columns."""
  if side == 1:
    return outputs
  rows, heads, group, size = outputs.shape
  split_heads = outputs.reshape(rows, heads, side, group // side, side, size // side)
  split_heads = jnp.stack([split_heads[:, :, i, :, i] for i in range(side)], 2)
  return split_heads.reshape(rows, heads * side, group // side, size // side)


class Columns(NamedTuple):
  """How columns lie in an array of the cache: along which axis, and how many a write covers."""

  axis: int
  tile: int

  def shape(self, x, count: int) -> tuple[int, int]:
    """Returns the last two sizes of so many columns of an array."""
    return (count, x.shape[3]) if self.axis == 2 else (x.shape[2], count)

  def of(self, first, count: int) -> tuple:
    """Returns the last two indices of so many columns."""
    columns = pl.ds(first, count), slice(None)
    return columns if self.axis == 2 else columns[::-1]


class _Refs(NamedTuple):
  """What one step of the grid sees: numbers of all blocks, its row and block, and scratch. Of
  arrays of the cache there are two, or with scales four: keys, their scales, values, their scales.
  """

  row: Any
  number: Any
  length: Any
  first: Any
  queries: Any
  new: tuple
  cached: tuple
  out: Any
  log_sum: Any
  caches: tuple
  top: Any
  total: Any
  acc: Any
  tiles: tuple
  pending: Any
  semaphores: Any


def _kernel(block: int, places: list[Columns], *refs):
  """One block of one row, for one core's heads."""
  x = _Refs(*refs)
  core, step = pl.program_id(0), pl.program_id(1)
  row, number = x.row[step], x.number[step]
  cached, heads = x.length[row] - 1, x.queries.shape[1]
  starts = [pl.multiple_of(lax.div(cached, p.tile) * p.tile, p.tile) for p in places]
  sums = x.top, x.total, x.acc

  def copies():
    return [pltpu.make_async_copy(
        tile, cache.at[row, pl.ds(core * heads, heads), *place.of(start, place.tile)],
        x.semaphores.at[i])
            for i, (tile, cache, place, start) in enumerate(zip(x.tiles, x.caches, places, starts,
                                                                strict=True))]

  def finish_writing():  # a write goes on while the next blocks are computed
    @pl.when(x.pending[0] == 1)
    def _wait():
      for copy in copies():
        copy.wait()
      x.pending[0] = 0

  @pl.when(step == 0)
  def _begin():
    x.pending[0] = 0

  @pl.when(number == lax.div(x.first[row], block))
  def _begin_row():
    x.top[...] = jnp.full(x.top.shape, LOWEST, jnp.float32)
    x.total[...] = jnp.zeros(x.total.shape, jnp.float32)
    x.acc[...] = jnp.zeros(x.acc.shape, jnp.float32)

  _add(x, sums, number * block, (x.first[row], cached))

  @pl.when((number + 1) * block > cached)
  def _end_row():
    _add_new(x, sums)
    x.out[0] = x.acc[...] / x.total[...]
    x.log_sum[0] = x.top[...] + jnp.log(x.total[...])
    finish_writing()
    for new, old, to, place, start in zip(x.new, x.cached, x.tiles, places, starts, strict=True):
      inside = pl.multiple_of(start - number * block, place.tile)
      column = lax.broadcasted_iota(jnp.int32, to.shape, place.axis - 1)
      old_tile = old[0, :, *place.of(inside, place.tile)]
      to[...] = jnp.where(column == cached - start, new[0], old_tile)
    for copy in copies():
      copy.start()
    x.pending[0] = 1

  @pl.when(step == pl.num_programs(1) - 1)
  def _end():
    finish_writing()


def _split(arrays: tuple):
  """Returns (keys, their scales, values, their scales) of refs; scales are None without."""
  if len(arrays) == 2:
    return arrays[0][0], None, arrays[1][0], None
  return tuple(x[0] for x in arrays)


def _of_queries(scale, queries: int):
  """Returns scales [K, n, c] for each query: [K, n G, c], or [K, 1, c]."""
  heads, side, columns = scale.shape
  if side == 1:
    return scale
  shape = heads, queries // side, columns
  return jnp.concatenate([jnp.broadcast_to(scale[:, i:i + 1], shape) for i in range(side)], 1)


def _add(x: _Refs, sums, begin, bounds):
  """Adds a block of columns, which begins at column `begin`, to a row's sums; `bounds`: the first
  column that counts, and the one after the last.
  """
  queries, (keys, key_scale, values, value_scale) = x.queries[0], _split(x.cached)
  count = queries.shape[1]

  def is_live(shape, axis: int):
    column = begin + lax.broadcasted_iota(jnp.int32, shape, axis)
    return (column >= bounds[0]) & (column < bounds[1])

  if key_scale is None:
    values = jnp.where(is_live(values.shape, 1), values, jnp.zeros((), values.dtype))  # 0 x NaN
  else:
    keys, values = keys.astype(queries.dtype), values.astype(queries.dtype)
    value_scale = jnp.where(is_live(value_scale.shape, 2), value_scale, 0.0)
  scores = lax.dot_general(queries, keys, (((2,), (2,)), ((0,), (0,))),
                           preferred_element_type=jnp.float32)
  if key_scale is not None:
    scores = scores * _of_queries(key_scale, count)

  def mix(p):
    p = p if value_scale is None else p * _of_queries(value_scale, count)
    return lax.dot_general(p.astype(values.dtype), values, (((2,), (1,)), ((0,), (0,))),
                           preferred_element_type=jnp.float32)

  _merge(jnp.where(is_live(scores.shape, 2), scores, LOWEST), mix, sums)


def _add_new(x: _Refs, sums):
  """Adds the new token to a row's sums."""
  queries, (keys, key_scale, values, value_scale) = x.queries[0], _split(x.new)
  score = jnp.sum(queries.astype(jnp.float32) * keys.astype(jnp.float32), -1, keepdims=True)
  if key_scale is not None:
    score = score * _of_queries(key_scale, queries.shape[1])

  def mix(p):
    p = p if value_scale is None else p * _of_queries(value_scale, queries.shape[1])
    return p * values.astype(jnp.float32)

  _merge(score, mix, sums)


def _merge(scores, mix, sums):
  """Adds scores [K, G, c] f32 to (largest score, sum of exp, sum of exp times values)."""
  top, total, acc = sums
  new_top = jnp.maximum(top[...], scores.max(-1, keepdims=True))
  scale, p = jnp.exp(top[...] - new_top), jnp.exp(scores - new_top)
  total[...] = total[...] * scale + p.sum(-1, keepdims=True)
  acc[...] = acc[...] * scale + mix(p)
  top[...] = new_top
