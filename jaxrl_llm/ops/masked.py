"""Masked sums and group statistics; the only place in the maths that divides by a count."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from jaxrl_llm.late import late_names
from jaxrl_llm.types import EffectiveShare, Extreme, Histogram, Mean

# What few methods need, and few runs load.
__getattr__ = late_names(__name__, dict.fromkeys(
    ("group_others", "pair_index", "row_quantile", "whiten"), "jaxrl_llm.ops.ranked"))

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
