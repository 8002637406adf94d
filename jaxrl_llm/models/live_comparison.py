"""The kernel of live blocks beside plain attention, on a small random cache of a device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.models import kv_cache, live_attention

LARGEST = 5e-2  # difference of outputs of normal values; a TPU multiplies f32 in bfloat16


@functools.cache
def difference(shapes: tuple[int, int, int, str], block: int, device: jax.Device,
               window: int = 0) -> float:
  """Returns the largest difference of the kernel's outputs and of the cache that it leaves.

  Columns that a row has not written hold NaN; NaN in the result counts as infinite.

  Args:
    shapes: heads, key-value heads, their width, dtype of the cache.
    block: columns of a block; the cache has two.
    window: tokens that a token sees, itself among them; 0: all.
  """
  heads, kv_heads, size, dtype = shapes
  length, columns = np.array([1, block + 3, 0, 2 * block], np.int32), 2 * block
  rng, side = np.random.default_rng(0), live_attention.side_by_side(size, kv_heads)
  written = (np.arange(columns) < length[:, None] - 1)[:, None, :, None]

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  queries, new = normal(4, 1, heads, size), [normal(4, 1, kv_heads, size) for _ in range(2)]
  cache = [np.where(written, normal(4, kv_heads, columns, size), np.nan) for _ in range(2)]
  arguments = jax.device_put((queries, *new, *cache, length), device)

  def held(x):
    return kv_cache.held(x, jnp.dtype(dtype), 3)

  @jax.jit
  def by_kernel(queries, new_keys, new_values, keys, values, length):
    compute = jnp.float32 if dtype == "int8" else dtype
    arrays = (x.astype(compute) for x in (queries, new_keys, new_values))
    joined = functools.partial(live_attention.join, side=side)
    cached = jax.tree.map(joined, (held(keys), held(values)))
    rows = live_attention.live_rows(length, cached[0], None, window)
    return live_attention.attend(*arrays, cached, rows, None)

  def multiplied_out(x):
    if isinstance(x, kv_cache.Int8):
      with np.errstate(invalid="ignore"):  # NaN
        x = x.values * np.repeat(x.scale, x.shape[-1] // x.scale.shape[-1], -1)
    return np.asarray(x, np.float32)

  with jax.default_device(device):
    out, cached = jax.device_get(by_kernel(*arguments))
    new, cache = jax.device_get(jax.tree.map(held, (new, cache)))
  expected, entered = _reference(queries, [multiplied_out(x) for x in new],
                                 [multiplied_out(x) for x in cache], length, window)
  differences = [np.abs(np.asarray(out, np.float32) - expected)[length > 0]]
  for got, wanted in zip(cached, entered, strict=True):
    wanted = np.asarray(live_attention.join(wanted, side))
    differences.append(np.abs(multiplied_out(got) - wanted)[~np.isnan(wanted)])
  largest = max(x.max() for x in differences)
  return float("inf") if np.isnan(largest) else float(largest)


def _reference(queries, new, cache, length, window: int):
  """Returns (outputs, keys and values with the new token) in f32, by plain numpy."""
  columns, size = cache[0].shape[2:]
  place = (np.arange(columns) == length[:, None] - 1)[:, None, :, None]
  keys, values = (np.where(place, x.swapaxes(1, 2), old) for x, old in zip(new, cache, strict=True))
  distance = (length - 1)[:, None] - np.arange(columns)
  seen = ((distance >= 0) & (distance < (window or columns)))[:, None, None]
  grouped = queries[:, 0].reshape(len(queries), keys.shape[1], -1, size) * size**-0.5
  scores = np.where(seen, np.einsum("bkgd,bktd->bkgt", grouped, keys), -1e30)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  known = np.where(seen.swapaxes(2, 3), values, 0)
  return np.einsum("bkgt,bktd->bkgd", weights, known).reshape(queries.shape), (keys, values)
