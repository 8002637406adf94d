"""Group statistics against loops, sums without cancellation, and types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import masked
from jaxrl_llm.types import merge_metrics

IDS = np.array([3, -1, 3, 8, -1, 3])


@pytest.mark.parametrize("shape", [(6,), (6, 4)])
def test_group_statistics_equal_loops(shape):
  values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  same = IDS[:, None] == IDS
  x, ids = jnp.asarray(values), jnp.asarray(IDS)
  for got, expected in ((masked.group_sum(x, ids), [values[row].sum(0) for row in same]),
                        (masked.group_max(x, ids), [values[row].max(0) for row in same]),
                        (masked.group_others(x, ids),
                         [values[row & (np.arange(6) != i)].sum(0) for i, row in enumerate(same)])):
    np.testing.assert_allclose(got, np.stack(expected), rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(masked.group_others(x, ids)[3], 0.0)


def others_survive(function):
  values = np.array([1e8, 0.1, 0.1, 5.0, 0.2, 0.2], np.float32)
  got = function(jnp.asarray(values), jnp.asarray(IDS))
  np.testing.assert_allclose(got[0], 0.3, rtol=1e-6)  # beside a row of 1e8


def test_others_lose_nothing_to_cancellation():
  others_survive(masked.group_others)
  with pytest.raises(AssertionError):
    others_survive(lambda x, ids: masked.group_sum(x, ids) - x)


def test_indices_are_dense_and_equal_where_the_ids_are():
  index = np.asarray(masked.group_index(jnp.asarray(IDS)))
  np.testing.assert_array_equal(index[:, None] == index, IDS[:, None] == IDS)
  assert sorted(set(index)) == [0, 1, 2]
  second = np.array([1, 1, 2, 1, 1, 1])
  pairs = np.asarray(masked.pair_index(jnp.asarray(IDS), jnp.asarray(second)))
  np.testing.assert_array_equal(pairs[:, None] == pairs,
                                (IDS[:, None] == IDS) & (second[:, None] == second))
  assert sorted(set(pairs)) == [0, 1, 2, 3]


def test_whiten():
  values = np.array([[1, 2, np.nan], [4, np.nan, 9]], np.float32)
  mask = ~np.isnan(values)
  got = masked.whiten(jnp.asarray(values), jnp.asarray(mask))
  kept = np.array([1, 2, 4, 9])
  np.testing.assert_allclose(np.asarray(got)[mask], (kept - 4) / np.std(kept, ddof=1), rtol=1e-6)
  np.testing.assert_array_equal(np.asarray(got)[~mask], 0.0)
  for only in (np.zeros((2, 3), bool), np.arange(6).reshape(2, 3) == 1):
    np.testing.assert_array_equal(masked.whiten(jnp.asarray(values), jnp.asarray(only)), 0.0)


def test_row_mean():
  values = jnp.asarray([[1.0, jnp.nan], [jnp.nan, jnp.nan]])
  mask = jnp.asarray([[True, False], [False, False]])
  np.testing.assert_array_equal(masked.row_mean(values, mask), [[1.0], [0.0]])
  assert np.all(np.isfinite(jax.grad(lambda v: jnp.sum(masked.row_mean(v, mask)))(values)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_metrics_keep_their_type(dtype):
  with jax.enable_x64(True):
    values, mask = jnp.asarray([[-0.5, 0.1, 0.9]], dtype), jnp.asarray([[True, True, False]])
    histogram = masked.histogram(values, mask, (-0.5, 0.0, 0.1))
    assert histogram.counts.dtype == np.float32
    # [low, high), edges in the values' type
    np.testing.assert_array_equal(histogram.counts, [0, 1, 0, 1])
    mean, extreme = masked.mean(values, mask), masked.extreme(values, mask)
    assert mean.total.dtype == dtype and extreme.min.dtype == dtype and extreme.max.dtype == dtype
    np.testing.assert_allclose([mean.total, mean.count, extreme.min, extreme.max],
                               [-0.4, 2, -0.5, 0.1], rtol=1e-6)
    merged = merge_metrics([{"h": histogram, "m": mean, "e": extreme}] * 2)
    np.testing.assert_array_equal(merged["h"].counts, [0, 2, 0, 2])
