"""Kernels of attention against counts of their blocks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.planning import flops, kernels
from jaxrl_llm.models import attention_kernels, kv_cache, live_attention

ROWS, KV_HEADS, GROUPS, LENGTH, SIZE = 2, 2, 4, 2048, 128
HEADS = ROWS * KV_HEADS * GROUPS
PAIRS = HEADS * LENGTH * (LENGTH + 1) // 2
BLOCKS = LENGTH // attention_kernels.LARGEST_BLOCK


def pairs(length: int, window: int) -> int:
  return HEADS * sum(min(i + 1, window) for i in range(length))


def counted(kernel, backward: bool, live: float = 1.0) -> dict:
  keys = jax.ShapeDtypeStruct((ROWS, KV_HEADS, LENGTH, SIZE), jnp.bfloat16)
  queries = jax.ShapeDtypeStruct((ROWS, KV_HEADS, GROUPS, LENGTH, SIZE), jnp.bfloat16)
  segments = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)

  def loss(*given):
    return jnp.sum(kernel(*given).astype(jnp.float32))

  f = jax.grad(loss, (0, 1, 2)) if backward else loss
  return flops.count(jax.jit(f).trace(queries, keys, keys, segments).jaxpr, live=live).once


@pytest.fixture(params=[attention_kernels.LONGEST_FUSED, 0], ids=["fused", "two kernels"])
def longest_fused(request, monkeypatch):
  monkeypatch.setattr(attention_kernels, "LONGEST_FUSED", request.param)
  attention_kernels._splash_kernel.cache_clear()
  yield request.param
  attention_kernels._splash_kernel.cache_clear()


def test_splash_computes_the_scores_once_more_in_a_second_kernel(longest_fused):
  both = counted(attention_kernels.splash, backward=True)[flops.KERNEL]
  assert both == 2 * (2 + (5 if longest_fused else 4 + 3)) * SIZE * PAIRS


@pytest.mark.parametrize("kernel, products", [(attention_kernels.splash, 5),
                                              (attention_kernels.triton, 7)])
def test_pairs_are_counted_once_per_product(kernel, products):
  forward = counted(kernel, backward=False)[flops.KERNEL]
  both = counted(kernel, backward=True)[flops.KERNEL]
  assert forward == 2 * 2 * SIZE * PAIRS
  assert both == 2 * (2 + products) * SIZE * PAIRS
  # with every block of the grid it would be nearly twice that
  assert forward < 0.6 * 2 * 2 * SIZE * HEADS * LENGTH**2


def test_blocks_between_segments_are_not_counted():
  capacity, block = 2000, attention_kernels.LARGEST_BLOCK
  bins = [[2000], [700, 800, 400], [512, 512, 512, 0, 0]]
  shares = []
  for lengths in bins:
    segments = np.pad(np.repeat(np.arange(len(lengths)) + 1, lengths), (0, 2048 - sum(lengths)))
    earlier = np.tril(np.ones((2048, 2048)))
    seen = (segments[:, None] == segments) * earlier
    blocks = seen.reshape(4, block, 4, block).any((1, 3)).repeat(block, 0).repeat(block, 1)
    shares.append((blocks * earlier).sum() / earlier.sum())
  assert shares[0] > shares[1] > shares[2]
  assert kernels.live_pairs(bins, capacity) == pytest.approx(np.mean(shares))
  kernel = functools.partial(attention_kernels.splash, window=0)
  full, half = (counted(kernel, backward=True, live=live) for live in (1.0, 0.5))
  assert half[flops.KERNEL] == 0.5 * full[flops.KERNEL]
  assert half[flops.READ_AGAIN] < 0.5 * full[flops.READ_AGAIN]


def test_a_window_s_pairs_are_counted_to_the_block():
  window, block = 600, attention_kernels.LARGEST_BLOCK
  kernel = functools.partial(attention_kernels.splash, window=window)
  for backward, products in ((False, 2), (True, 2 + 4 + 3)):
    count = counted(kernel, backward)[flops.KERNEL] / (2 * products * SIZE)
    assert pairs(LENGTH, window) <= count <= pairs(LENGTH, window + block) < PAIRS


def test_blocks_are_read_again_on_a_tpu_alone():
  steps = HEADS * BLOCKS * (BLOCKS + 1) // 2
  block = (LENGTH // BLOCKS) * SIZE * 2  # bytes
  size = counted(attention_kernels.splash, backward=False)[flops.READ_AGAIN]
  assert size == 2 * steps * block - 2 * HEADS * LENGTH * SIZE * 2
  assert counted(attention_kernels.triton, backward=False)[flops.READ_AGAIN] == 0


def decode_step(queries, cached, window=0):
  """The traced attention of one token of each row to its live columns."""
  one = jax.ShapeDtypeStruct((ROWS, 1, KV_HEADS, SIZE), jnp.bfloat16)

  def step(queries, keys, values, cached, length):
    rows = live_attention.live_rows(length, cached[0], None, window)
    return live_attention.attend(queries, keys, values, cached, rows, None)

  return jax.jit(step).trace(queries, one, one, cached, jax.ShapeDtypeStruct((ROWS,), jnp.int32))


def cache(columns: int, dtype):
  shape = (ROWS, KV_HEADS, columns, SIZE)
  return (jax.eval_shape(lambda: kv_cache.zeros(shape, jnp.dtype(dtype), 3)),) * 2


@pytest.mark.parametrize("dtype, column", [(jnp.bfloat16, 2 * SIZE), (jnp.int8, SIZE + 4)])
def test_live_blocks_are_read_by_their_share(dtype, column):
  """Of int8, scales too; and each row writes a tile of columns."""
  share = 0.25
  queries = jax.ShapeDtypeStruct((ROWS, 1, KV_HEADS * GROUPS, SIZE), jnp.bfloat16)
  count = flops.count(decode_step(queries, cache(LENGTH, dtype)).jaxpr, live=share).once
  cache_bytes, heads = 2 * ROWS * KV_HEADS * LENGTH * column, ROWS * KV_HEADS
  tiles = 2 * heads * (32 * SIZE + (128 * 4 if dtype == jnp.int8 else 0))
  assert count[flops.READ_AGAIN] == (share - 2) * cache_bytes + tiles
  assert count[flops.KERNEL] == 4 * ROWS * KV_HEADS * GROUPS * SIZE * LENGTH * share


def test_with_a_window_no_more_blocks_are_read_than_it_meets():
  columns, window = 4096, 512
  queries = jax.ShapeDtypeStruct((ROWS, 1, KV_HEADS, SIZE), jnp.bfloat16)
  traced = decode_step(queries, cache(columns, jnp.bfloat16), window)
  for live, share in ((0.1, 0.1), (0.9, 2 * 512 / columns)):  # it meets two blocks of 512
    count = flops.count(traced.jaxpr, live=live).once[flops.KERNEL]
    assert count == 4 * ROWS * KV_HEADS * SIZE * columns * share


def test_other_kernels_count_their_whole_grid(monkeypatch):
  monkeypatch.setattr(flops.kernels, "attention", lambda eqn, live: None)
  count = counted(attention_kernels.splash, backward=False)[flops.KERNEL]
  assert count >= 2 * 2 * SIZE * HEADS * LENGTH**2
