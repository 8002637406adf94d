"""The kernel of live_attention.py (Pallas, TPU).

Its grid is the list of blocks of columns in which rows have tokens, row by row, and has a dynamic
size: slots without a row and columns without a token cost no step. On chips with two cores, each has
half of the kv-heads. The new token enters the sum from registers, and the kernel writes the tile of
columns in which it lies into the cache's own buffer.

Shapes: B rows, K kv-heads, G query heads of each, d head width, T columns.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxrl_llm.models.live_attention import NAME, TILE_BYTES

LOWEST = -1e30


def attend_and_write(queries, new_keys, new_values, keys, values, length, blocks, *, block: int,
                     cores: int = 1, interpret: bool = False):
  """Attends to a row's columns and its new token, which it writes at column length - 1.

  Args:
    queries: [B, K, G, d], scaled.
    new_keys, new_values: [B, K, 1, d].
    keys, values: [B, K, T, d]; columns from length - 1 on may hold anything, NaN too.
    length: [B] int32, tokens with the new one; 0: the row does nothing, and its outputs are 0.
    blocks: (row [n], number of the block in its row [n], how many there are), all int32.
    block: columns of a block; it divides T.
    cores: of the chip; they divide K.

  Returns:
    (outputs [B, K, G, d] f32, log of the sum of exp(scores) [B, K, G, 1] f32, keys, values).
  """
  group, size = queries.shape[2:]
  heads, tile = keys.shape[1] // cores, TILE_BYTES // keys.dtype.itemsize

  def of_row(*shape):
    return pl.BlockSpec((1, heads, *shape), lambda c, i, row, number, length: (row[i], c, 0, 0))

  of_block = pl.BlockSpec((1, heads, block, size),
                          lambda c, i, row, number, length: (row[i], c, number[i], 0))
  anywhere = pl.BlockSpec(memory_space=pl.ANY)
  row, number, total = blocks
  scratch = [pltpu.VMEM((heads, group, width), jnp.float32) for width in (1, 1, size)]
  scratch += [pltpu.VMEM((heads, tile, size), keys.dtype)] * 2
  spec = pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=3, grid=(cores, total),
      in_specs=[of_row(group, size), of_row(1, size), of_row(1, size), of_block, of_block],
      out_specs=[of_row(group, size), of_row(group, 1), anywhere, anywhere],
      scratch_shapes=[*scratch, pltpu.SMEM((1,), jnp.int32), pltpu.SemaphoreType.DMA((2,))])
  shapes = [jax.ShapeDtypeStruct(queries.shape, jnp.float32),
            jax.ShapeDtypeStruct((*queries.shape[:3], 1), jnp.float32),
            *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (keys, values))]
  out, log_sum, keys, values = pl.pallas_call(
      functools.partial(_kernel, block=block, tile=tile), grid_spec=spec, interpret=interpret,
      name=NAME, out_shape=shapes, input_output_aliases={6: 2, 7: 3},
      compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
  )(row, number, length, queries, new_keys.astype(keys.dtype), new_values.astype(values.dtype),
    keys, values)
  some = (length > 0)[:, None, None, None]
  return jnp.where(some, out, 0.0), jnp.where(some, log_sum, LOWEST), keys, values


def _kernel(row, number, length, q, new_k, new_v, k, v, out, log_sum, k_cache, v_cache, top, total,
            acc, k_tile, v_tile, pending, semaphores, *, block: int, tile: int):
  """One block of one row, for one core's heads."""
  core, step = pl.program_id(0), pl.program_id(1)
  at_row, at_block = row[step], number[step]
  cached, heads = length[at_row] - 1, k.shape[1]
  start = pl.multiple_of(lax.div(cached, tile) * tile, tile)

  def copies():
    tiles = enumerate(((k_tile, k_cache), (v_tile, v_cache)))
    return [pltpu.make_async_copy(
        x, cache.at[at_row, pl.ds(core * heads, heads), pl.ds(start, tile), :], semaphores.at[i])
            for i, (x, cache) in tiles]

  def finish_writing():  # a write goes on while the next blocks are computed
    @pl.when(pending[0] == 1)
    def _wait():
      for copy in copies():
        copy.wait()
      pending[0] = 0

  @pl.when(step == 0)
  def _begin():
    pending[0] = 0

  @pl.when(at_block == 0)
  def _begin_row():
    top[...] = jnp.full(top.shape, LOWEST, jnp.float32)
    total[...] = jnp.zeros(total.shape, jnp.float32)
    acc[...] = jnp.zeros(acc.shape, jnp.float32)

  _add(q, k, v, (top, total, acc), at_block * block, cached)

  @pl.when((at_block + 1) * block > cached)
  def _end_row():
    own = jnp.sum(q[0].astype(jnp.float32) * new_k[0].astype(jnp.float32), -1, keepdims=True)
    _merge(own, lambda p: p * new_v[0].astype(jnp.float32), (top, total, acc))
    out[0] = acc[...] / total[...]
    log_sum[0] = top[...] + jnp.log(total[...])
    finish_writing()
    inside = pl.multiple_of(start - at_block * block, tile)
    place = lax.broadcasted_iota(jnp.int32, k_tile.shape, 1) == cached - start
    k_tile[...] = jnp.where(place, new_k[0], k[0, :, pl.ds(inside, tile), :])
    v_tile[...] = jnp.where(place, new_v[0], v[0, :, pl.ds(inside, tile), :])
    for copy in copies():
      copy.start()
    pending[0] = 1

  @pl.when(step == pl.num_programs(1) - 1)
  def _end():
    finish_writing()


def _add(q, k, v, sums, first, cached):
  """Adds a block of columns, which begins at column `first`, to a row's sums."""
  scores = lax.dot_general(q[0], k[0], (((2,), (2,)), ((0,), (0,))),
                           preferred_element_type=jnp.float32)
  column = first + lax.broadcasted_iota(jnp.int32, scores.shape, 2)
  seen = first + lax.broadcasted_iota(jnp.int32, v.shape[1:], 1) < cached
  values = jnp.where(seen, v[0], jnp.zeros((), v.dtype))  # 0 x NaN is NaN

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
