"""Prefix kernels against loops, and with the length axis sharded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxrl_llm.ops import prefix


def loop(log_ratio, mask):
  """(inclusive sum, exclusive minimum, position) token by token, in float64."""
  total, smallest, index = (np.zeros(mask.shape) for _ in range(3))
  for b in range(mask.shape[0]):
    seen = []
    for t in range(mask.shape[1]):
      smallest[b, t] = min(seen) if seen else 0.0
      if mask[b, t]:
        seen.append(float(log_ratio[b, t]))
      total[b, t], index[b, t] = sum(seen), len(seen)
  return total, smallest, index


def rows(seed, shape=(6, 24)):
  rng = np.random.default_rng(seed)
  mask = rng.random(shape) < 0.7
  mask[0] = False
  mask[1] = np.arange(shape[1]) == 5
  return jnp.asarray(rng.standard_normal(shape), jnp.float32), jnp.asarray(mask)


@pytest.mark.parametrize("seed", range(3))
def test_equal_the_loop(seed):
  log_ratio, mask = rows(seed)
  got = (prefix.cumulative_log_ratio(log_ratio, mask), prefix.prefix_min(log_ratio, mask), prefix.token_index(mask))
  for a, b in zip(got, loop(log_ratio, mask), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_masked_values_do_not_matter():
  log_ratio, mask = rows(3)
  dirty = jnp.where(mask, log_ratio, jnp.nan)
  np.testing.assert_array_equal(prefix.cumulative_log_ratio(dirty, mask), prefix.cumulative_log_ratio(log_ratio, mask))
  np.testing.assert_array_equal(prefix.prefix_min(dirty, mask), prefix.prefix_min(log_ratio, mask))


def test_minimum_is_exclusive_and_zero_at_the_start():
  log_ratio, mask = jnp.asarray([[0.5, -1.0, 2.0, -3.0]]), jnp.asarray([[True, True, False, True]])
  np.testing.assert_array_equal(prefix.prefix_min(log_ratio, mask), [[0.0, 0.5, -1.0, -1.0]])


def test_sharded_length_equals_whole():
  log_ratio, mask = rows(4, (4, 32))
  mesh = Mesh(np.array(jax.devices()[:8]), ("sequence",))
  spec = PartitionSpec(None, "sequence")
  for kernel in (prefix.cumulative_log_ratio, prefix.prefix_min, lambda r, m, **k: prefix.token_index(m, **k)):
    sharded = jax.jit(jax.shard_map(lambda r, m, f=kernel: f(r, m, axis_name="sequence"), mesh=mesh,
                                    in_specs=(spec, spec), out_specs=spec))
    np.testing.assert_allclose(sharded(log_ratio, mask), kernel(log_ratio, mask), rtol=1e-5, atol=1e-6)
    local = jax.jit(jax.shard_map(lambda r, m, f=kernel: f(r, m), mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    assert not np.allclose(local(log_ratio, mask), kernel(log_ratio, mask)), "without axis_name a shard starts afresh"


def test_scans_are_associative_scans():
  log_ratio, mask = rows(5)
  for kernel in (prefix.cumulative_log_ratio, prefix.prefix_min):
    names = {e.primitive.name for e in jax.make_jaxpr(kernel)(log_ratio, mask).jaxpr.eqns}
    assert not names & {"cumsum", "cummin", "scan", "while"}, names


def test_long_rows_are_precise():
  log_ratio = (0.1 * np.random.default_rng(0).standard_normal((2, 32768))).astype(np.float32)
  got = prefix.cumulative_log_ratio(jnp.asarray(log_ratio), jnp.ones(log_ratio.shape, bool))
  assert np.max(np.abs(got - np.cumsum(log_ratio.astype(np.float64), -1))) < 2e-5
