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

from jaxrl_llm.models.live_attention import NAME, TILE_BYTES, Chip, LiveRows

LOWEST = -1e30


def attend_and_write(queries, new: tuple, cached: tuple, rows: LiveRows, block: int, chip: Chip):
  """Attends to a row's columns and its new token, which it writes at column length - 1.

  Args:
    queries: [B, K, G, d], scaled.
    new: keys and values of the new tokens, [B, K, 1, d] each.
    cached: keys and values [B, K, T, d]; columns from length - 1 on may hold anything, NaN too.
    rows: of one device. A row of length 0 has outputs of 0.
    block: columns of a block; it divides T.

  Returns:
    (outputs [B, K, G, d] f32, log of the sum of exp(scores) [B, K, G, 1] f32, keys, values).
  """
  keys, values = cached
  group, size = queries.shape[2:]
  heads, tile = keys.shape[1] // chip.cores, TILE_BYTES // keys.dtype.itemsize

  def row_at(core, step, row, number, length):
    return row[step], core, 0, 0

  def block_at(core, step, row, number, length):
    return row[step], core, number[step], 0

  def of_row(*shape):
    return pl.BlockSpec((1, heads, *shape), row_at)

  of_block, anywhere = pl.BlockSpec((1, heads, block, size), block_at), pl.BlockSpec(
      memory_space=pl.ANY)
  scratch = [pltpu.VMEM((heads, group, width), jnp.float32) for width in (1, 1, size)]
  scratch += [pltpu.VMEM((heads, tile, size), keys.dtype)] * 2
  spec = pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=3, grid=(chip.cores, rows.total[0]),
      in_specs=[of_row(group, size), of_row(1, size), of_row(1, size), of_block, of_block],
      out_specs=[of_row(group, size), of_row(group, 1), anywhere, anywhere],
      scratch_shapes=[*scratch, pltpu.SMEM((1,), jnp.int32), pltpu.SemaphoreType.DMA((2,))])
  shapes = [jax.ShapeDtypeStruct(queries.shape, jnp.float32),
            jax.ShapeDtypeStruct((*queries.shape[:3], 1), jnp.float32),
            *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in cached)]
  out, log_sum, keys, values = pl.pallas_call(
      functools.partial(_kernel, block, tile), grid_spec=spec, interpret=chip.interpret, name=NAME,
      out_shape=shapes, input_output_aliases={6: 2, 7: 3},
      compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
  )(rows.row, rows.number, rows.length, queries, *(x.astype(keys.dtype) for x in new), *cached)
  some = (rows.length > 0)[:, None, None, None]
  return jnp.where(some, out, 0.0), jnp.where(some, log_sum, LOWEST), keys, values


class _Refs(NamedTuple):
  """What one step of the grid sees: numbers of all blocks, its row and block, and scratch."""

  row: Any
  number: Any
  length: Any
  queries: Any
  new_keys: Any
  new_values: Any
  keys: Any
  values: Any
  out: Any
  log_sum: Any
  key_cache: Any
  value_cache: Any
  top: Any
  total: Any
  acc: Any
  key_tile: Any
  value_tile: Any
  pending: Any
  semaphores: Any


def _kernel(block: int, tile: int, *refs):
  """One block of one row, for one core's heads."""
  x = _Refs(*refs)
  core, step = pl.program_id(0), pl.program_id(1)
  row, number = x.row[step], x.number[step]
  cached, heads = x.length[row] - 1, x.keys.shape[1]
  start = pl.multiple_of(lax.div(cached, tile) * tile, tile)
  sums = x.top, x.total, x.acc

  def copies():
    tiles = (x.key_tile, x.key_cache), (x.value_tile, x.value_cache)
    return [pltpu.make_async_copy(
        new, cache.at[row, pl.ds(core * heads, heads), pl.ds(start, tile), :], x.semaphores.at[i])
            for i, (new, cache) in enumerate(tiles)]

  def finish_writing():  # a write goes on while the next blocks are computed
    @pl.when(x.pending[0] == 1)
    def _wait():
      for copy in copies():
        copy.wait()
      x.pending[0] = 0

  @pl.when(step == 0)
  def _begin():
    x.pending[0] = 0

  @pl.when(number == 0)
  def _begin_row():
    x.top[...] = jnp.full(x.top.shape, LOWEST, jnp.float32)
    x.total[...] = jnp.zeros(x.total.shape, jnp.float32)
    x.acc[...] = jnp.zeros(x.acc.shape, jnp.float32)

  _add(x, sums, number * block, cached)

  @pl.when((number + 1) * block > cached)
  def _end_row():
    own = jnp.sum(x.queries[0].astype(jnp.float32) * x.new_keys[0].astype(jnp.float32), -1,
                  keepdims=True)
    _merge(own, functools.partial(jnp.multiply, x.new_values[0].astype(jnp.float32)), sums)
    x.out[0] = x.acc[...] / x.total[...]
    x.log_sum[0] = x.top[...] + jnp.log(x.total[...])
    finish_writing()
    inside = pl.multiple_of(start - number * block, tile)
    place = lax.broadcasted_iota(jnp.int32, x.key_tile.shape, 1) == cached - start
    for new, old, to in ((x.new_keys, x.keys, x.key_tile), (x.new_values, x.values, x.value_tile)):
      to[...] = jnp.where(place, new[0], old[0, :, pl.ds(inside, tile), :])
    for copy in copies():
      copy.start()
    x.pending[0] = 1

  @pl.when(step == pl.num_programs(1) - 1)
  def _end():
    finish_writing()


def _add(x: _Refs, sums, first, cached):
  """Adds a block of columns, which begins at column `first`, to a row's sums."""
  keys, values = x.keys[0], x.values[0]
  scores = lax.dot_general(x.queries[0], keys, (((2,), (2,)), ((0,), (0,))),
                           preferred_element_type=jnp.float32)
  column = first + lax.broadcasted_iota(jnp.int32, scores.shape, 2)
  is_live = first + lax.broadcasted_iota(jnp.int32, values.shape, 1) < cached
  values = jnp.where(is_live, values, jnp.zeros((), values.dtype))  # 0 x NaN is NaN

  def mix(p):
    return lax.dot_general(p.astype(values.dtype), values, (((2,), (1,)), ((0,), (0,))),
                           preferred_element_type=jnp.float32)

  _merge(jnp.where(column < cached, scores, LOWEST), mix, sums)


def _merge(scores, mix, sums):
  """Adds scores [K, G, c] f32 to (largest score, sum of exp, sum of exp times values)."""
  top, total, acc = sums
  new_top = jnp.maximum(top[...], scores.max(-1, keepdims=True))
  scale, p = jnp.exp(top[...] - new_top), jnp.exp(scores - new_top)
  total[...] = total[...] * scale + p.sum(-1, keepdims=True)
  acc[...] = acc[...] * scale + mix(p)
  top[...] = new_top
