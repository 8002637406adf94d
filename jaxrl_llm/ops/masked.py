"""Masked sums and group statistics; the only place in the maths that divides by a count."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from jaxrl_llm.types import EffectiveShare, Extreme, Histogram, Mean

# Fixed edges for quantiles of log-ratios in nats, dense around 0, where most of them lie.
_POSITIVE_EDGES = tuple(float(f"{x:.3g}") for x in (10 ** (e / 6) for e in range(-30, 7)))
LOG_RATIO_EDGES = tuple(-x for x in reversed(_POSITIVE_EDGES)) + (0.0,) + _POSITIVE_EDGES


def masked(values: Array, mask: Array) -> Array:
  """Returns `values` where `mask`, 0 elsewhere, in at least f32.

  A masked entry, NaN included, reaches neither the result nor the gradient.
  """
  return jnp.where(mask, values, 0).astype(jnp.promote_types(jnp.result_type(values), jnp.float32))


def safe_divide(total: Array, count: Array) -> Array:
  """Returns total / count, and 0 where count is 0; neither the value nor the gradient is ever NaN.
  """
  return jnp.where(count > 0, total / jnp.where(count > 0, count, 1), 0.0)


def row_mean(values: Float[Array, "B L"], mask: Bool[Array, "B L"]) -> Float[Array, "B 1"]:
  """Returns the mean over the masked tokens of each row; 0 for a row without any."""
  count = jnp.sum(mask, -1, keepdims=True).astype(jnp.float32)
  return safe_divide(jnp.sum(masked(values, mask), -1, keepdims=True), count)


def row_quantile(values: Float[Array, "B L"], mask: Bool[Array, "B L"],
                 share: float) -> Float[Array, "B 1"]:
  """Returns the quantile of each row's masked values, interpolated linearly; 0 for a row without
  any.

  Args:
    share: 0 is the smallest value, 1 the largest.
  """
  values = masked(values, mask)
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
  deviation = masked(values, mask)
  # The second pass removes the rounding of the first mean, which 1 / sqrt(epsilon) would magnify.
  for _ in range(2):
    deviation = masked(deviation - safe_divide(jnp.sum(deviation), count), mask)
  return deviation * lax.rsqrt(safe_divide(jnp.sum(jnp.square(deviation)), count - 1) + epsilon)


def group_index(group_id: Int[Array, " B"]) -> Int[Array, " B"]:
  """Returns group numbers 0, 1, ... without gaps, for ids that may be any integers in any order."""
  return jnp.unique(group_id, return_inverse=True, size=group_id.shape[0])[1]


def group_sum(values: Num[Array, "B *D"], group_id: Int[Array, " B"]) -> Num[Array, "B *D"]:
  """Returns, for each row, the sum over the rows of its group; per column where values is [B, L].

  Args:
    values: [B] or [B, L].
    group_id: [B] int, any integers in any order.
  """
  index = group_index(group_id)
  return jax.ops.segment_sum(values, index, num_segments=values.shape[0])[index]


def group_max(values: Num[Array, "B *D"], group_id: Int[Array, " B"]) -> Num[Array, "B *D"]:
  """Returns, for each row, the largest value among the rows of its group; arguments as `group_sum`.
  """
  index = group_index(group_id)
  return jax.ops.segment_max(values, index, num_segments=values.shape[0])[index]


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


def mean(values: Array, mask: Array) -> Mean:
  """Returns a mergeable mean over the masked entries."""
  return Mean(jnp.sum(masked(values, mask)), jnp.sum(mask).astype(jnp.float32))


def effective_share(log_weights: Float[Array, " B"], mask: Bool[Array, " B"]) -> EffectiveShare:
  """Returns a mergeable effective share of the weights exp(log_weights) of the masked rows.

  Log-weights beyond 40 nats count as 40, so that no square overflows; one such row is all that
  counts either way.
  """
  weights = masked(jnp.exp(jnp.clip(log_weights, -40, 40)), mask)
  return EffectiveShare(jnp.sum(weights), jnp.sum(jnp.square(weights)),
                        jnp.sum(mask).astype(jnp.float32))


def extreme(values: Array, mask: Array) -> Extreme:
  """Returns the mergeable smallest and largest masked entries, in the dtype of `values`."""
  infinity = jnp.asarray(jnp.inf, values.dtype)
  return Extreme(jnp.min(jnp.where(mask, values, infinity)),
                 jnp.max(jnp.where(mask, values, -infinity)))


def histogram(values: Array, mask: Array, edges: tuple[float, ...] = LOG_RATIO_EDGES) -> Histogram:
  """Returns mergeable f32 counts of the masked values between `edges`, compared in their own dtype.
  """
  index = jnp.searchsorted(jnp.asarray(edges, values.dtype), values.reshape(-1), side="right")
  counts = mask.reshape(-1).astype(jnp.float32)
  return Histogram(jnp.zeros(len(edges) + 1, jnp.float32).at[index].add(counts), edges)
