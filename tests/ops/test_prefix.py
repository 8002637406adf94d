"""Prefix kernels against loops, and with the length axis sharded."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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


def token_index(log_ratio, mask, **options):
  """`prefix.token_index` with the arguments of the other kernels."""
  return prefix.token_index(mask, **options)


KERNELS = {"cumulative_log_ratio": prefix.cumulative_log_ratio, "prefix_min": prefix.prefix_min,
           "token_index": token_index}


def rows(seed, shape=(6, 24)):
  rng = np.random.default_rng(seed)
  mask = rng.random(shape) < 0.7
  mask[0] = False
  mask[1] = np.arange(shape[1]) == 5
  return jnp.asarray(rng.standard_normal(shape), jnp.float32), jnp.asarray(mask)


@pytest.mark.parametrize("seed", range(3))
def test_equal_the_loop(seed):
  log_ratio, mask = rows(seed)
  got = (prefix.cumulative_log_ratio(log_ratio, mask), prefix.prefix_min(log_ratio, mask),
         prefix.token_index(mask))
  for a, b in zip(got, loop(log_ratio, mask), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_masked_values_do_not_matter():
  log_ratio, mask = rows(3)
  dirty = jnp.where(mask, log_ratio, jnp.nan)
  np.testing.assert_array_equal(prefix.cumulative_log_ratio(dirty, mask),
                                prefix.cumulative_log_ratio(log_ratio, mask))
  np.testing.assert_array_equal(prefix.prefix_min(dirty, mask), prefix.prefix_min(log_ratio, mask))


def test_minimum_is_exclusive_and_zero_at_the_start():
  log_ratio, mask = jnp.asarray([[0.5, -1.0, 2.0, -3.0]]), jnp.asarray([[True, True, False, True]])
  np.testing.assert_array_equal(prefix.prefix_min(log_ratio, mask), [[0.0, 0.5, -1.0, -1.0]])


@pytest.mark.slow
def test_sharded_length_equals_whole():
  log_ratio, mask = rows(4, (4, 32))
  mesh = Mesh(np.array(jax.devices()[:8]), ("sequence",))
  spec = PartitionSpec(None, "sequence")
  on_mesh = functools.partial(jax.shard_map, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
  for kernel in KERNELS.values():
    expected = kernel(log_ratio, mask)
    sharded = jax.jit(on_mesh(functools.partial(kernel, axis_name="sequence")))
    np.testing.assert_allclose(sharded(log_ratio, mask), expected, rtol=1e-5, atol=1e-6)
    local = jax.jit(on_mesh(kernel))(log_ratio, mask)
    assert not np.allclose(local, expected), "without axis_name a shard starts afresh"


def test_long_rows_are_precise():
  log_ratio = (0.01 * np.random.default_rng(0).standard_normal((2, 32768))).astype(np.float32)
  exact = np.cumsum(log_ratio.astype(np.float64), -1)
  got = jax.jit(prefix.cumulative_log_ratio)(jnp.asarray(log_ratio),
                                             jnp.ones(log_ratio.shape, bool))
  assert np.max(np.abs(got - exact)) < 2e-5
  one_by_one = np.cumsum(log_ratio, -1, dtype=np.float32)
  running_error = np.max(np.abs(one_by_one - exact))
  assert np.max(np.abs(got - exact)) < 0.2 * running_error, "a tree of sums beats a running sum"
  half = prefix.cumulative_log_ratio(jnp.zeros((1, 4), jnp.bfloat16), jnp.ones((1, 4), bool))
  assert half.dtype == jnp.float32, "half precision would not do"


def gathered(kernel, shape) -> list[int]:
  """Sizes of the results of all exchanges between 8 devices over which the length is sharded."""
  mesh = Mesh(np.array(jax.devices()[:8]), ("sequence",))
  spec = PartitionSpec(None, "sequence")
  sharding = NamedSharding(mesh, spec)
  arguments = (jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding),
               jax.ShapeDtypeStruct(shape, bool, sharding=sharding))
  run = jax.shard_map(kernel, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
  text = jax.jit(run).lower(*arguments).compile().as_text()
  exchanges = "all-gather|all-reduce|all-to-all|collective-permute"
  exchange = rf"= \(?\w+\[([0-9,]*)\].* ({exchanges})(?:-start)?\("
  return [math.prod(map(int, match[0].split(","))) for match in re.findall(exchange, text)]


@pytest.mark.parametrize("name", KERNELS)
def test_shards_exchange_their_totals_and_nothing_else(name):
  shape = (4, 1024)
  kernel = functools.partial(KERNELS[name], axis_name="sequence")
  assert gathered(kernel, shape) == [8 * shape[0]]

  def wasteful(r, m):
    """Gathers the whole length, scans it, and keeps its own part."""
    full = KERNELS[name](*(lax.all_gather(x, "sequence", axis=1, tiled=True) for x in (r, m)))
    return lax.dynamic_slice_in_dim(full, lax.axis_index("sequence") * r.shape[1], r.shape[1], 1)

  assert max(gathered(wasteful, shape)) >= shape[0] * shape[1], "the count would notice"
