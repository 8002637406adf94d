"""Quantiles, whitening, and sums over the order of rows, under their names in ops/masked.py."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.ops import masked


def row_quantile(values: Float[Array, "B L"], mask: Bool[Array, "B L"],
                 share: float) -> Float[Array, "B 1"]:
  """Returns the quantile of each row's masked values, interpolated linearly; 0 for a row without
  any.

  Args:
    share: 0 is the smallest value, 1 the largest.
  """
  values = masked.masked(values, mask)
  ascending = jnp.sort(jnp.where(mask, values, jnp.inf), -1)
  last = jnp.maximum(jnp.sum(mask, -1, keepdims=True) - 1, 0)
  place = last.astype(values.dtype) * share
  low_index = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, last)
  low = jnp.take_along_axis(ascending, low_index, -1)
  high = jnp.take_along_axis(ascending, jnp.minimum(low_index + 1, last), -1)
  quantile = low + (place - low_index) * (high - low)
  return jnp.where(jnp.any(mask, -1, keepdims=True), quantile, 0.0)


def whiten(values: Array, mask: Array, *, epsilon: float = 1e-8) -> Array:
  """Returns (values - mean) / sqrt(var + epsilon) over the masked entries, 0 elsewhere.

  The variance divides by count - 1; of a single entry it is 0.
  """
  count = jnp.sum(mask).astype(jnp.float32)
  deviation = masked.masked(values, mask)
  # The second pass removes the rounding of the first mean, which 1 / sqrt(epsilon) would magnify.
  for _ in range(2):
    deviation = masked.masked(deviation - masked.safe_divide(jnp.sum(deviation), count), mask)
  variance = masked.safe_divide(jnp.sum(jnp.square(deviation)), count - 1)
  return deviation * lax.rsqrt(variance + epsilon)


def group_others(values: Float[Array, "B *D"], group_id: Int[Array, " B"]) -> Float[Array, "B *D"]:
  """Returns, for each row, the sum over the other rows of its group; arguments as `group_sum`.

  It is exactly 0 where there are no others. The rows before and after the row are summed: the
  group's sum minus the row would carry the rounding of a large row into a small result.
  """
  order = jnp.argsort(group_id, stable=True)
  sorted_id, sorted_values = group_id[order], values[order]
  changes = sorted_id[1:] != sorted_id[:-1]
  edge = jnp.ones(1, bool)
  sum_before = _sum_before(sorted_values, jnp.concatenate([edge, changes]))
  sum_after = _sum_before(sorted_values[::-1], jnp.concatenate([edge, changes[::-1]]))[::-1]
  return jnp.zeros_like(values).at[order].set(sum_before + sum_after)


def _sum_before(values: Array, first: Bool[Array, " B"]) -> Array:
  """Returns the sum of the earlier rows of the same segment; `first` is True on each segment's
  first row.
  """
  flags = jnp.broadcast_to(first.reshape((-1,) + (1,) * (values.ndim - 1)), values.shape)

  def join(earlier, later):
    return earlier[0] | later[0], jnp.where(later[0], later[1], earlier[1] + later[1])

  inclusive = lax.associative_scan(join, (flags, values), axis=0)[1]
  return jnp.where(flags, 0, jnp.concatenate([jnp.zeros_like(values[:1]), inclusive[:-1]]))


def pair_index(first: Int[Array, " B"], second: Int[Array, " B"]) -> Int[Array, " B"]:
  """Returns numbers 0, 1, ... without gaps, equal exactly where both `first` and `second` are
  equal.
  """
  order = jnp.lexsort((second, first))
  changes = (first[order][1:] != first[order][:-1]) | (second[order][1:] != second[order][:-1])
  number = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(changes, dtype=jnp.int32)])
  return jnp.zeros_like(number).at[order].set(number)
