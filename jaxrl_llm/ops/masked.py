"""Masked sums and group statistics; the only place in the maths that divides by a count."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.types import Extreme, Histogram, Mean

# Fixed edges for log-ratio quantiles: dense around 0, where ratios live.
_POSITIVE_EDGES = tuple(float(f"{x:.3g}") for x in (10 ** (e / 6) for e in range(-30, 7)))
LOG_RATIO_EDGES = tuple(-x for x in reversed(_POSITIVE_EDGES)) + (0.0,) + _POSITIVE_EDGES


def masked(values: Array, mask: Array) -> Array:
  """`values` in at least f32 where `mask`, 0 elsewhere, whatever stood there (NaN included), also in the gradient."""
  return jnp.where(mask, values, 0).astype(jnp.promote_types(jnp.result_type(values), jnp.float32))


def safe_divide(total: Array, count: Array) -> Array:
  """total / count, and 0 where count is 0; free of NaN in both directions."""
  return jnp.where(count > 0, total / jnp.where(count > 0, count, 1), 0.0)


def row_mean(values: Float[Array, "B L"], mask: Bool[Array, "B L"]) -> Float[Array, "B 1"]:
  """Mean over the masked tokens of each row; 0 for a row without any."""
  count = jnp.sum(mask, -1, keepdims=True).astype(jnp.float32)
  return safe_divide(jnp.sum(masked(values, mask), -1, keepdims=True), count)


def group_sum(values: Float[Array, " B"], group_id: Int[Array, " B"]) -> Float[Array, " B"]:
  """For each row, the sum over the rows of its group; ids are arbitrary and unsorted."""
  rows = values.shape[0]
  _, index = jnp.unique(group_id, return_inverse=True, size=rows)
  return jax.ops.segment_sum(values, index, num_segments=rows)[index]


def mean(values: Array, mask: Array) -> Mean:
  """Mergeable mean over masked entries."""
  return Mean(jnp.sum(masked(values, mask)), jnp.sum(mask).astype(jnp.float32))


def extreme(values: Array, mask: Array) -> Extreme:
  return Extreme(jnp.min(jnp.where(mask, values, jnp.inf)), jnp.max(jnp.where(mask, values, -jnp.inf)))


def histogram(values: Array, mask: Array, edges: tuple[float, ...] = LOG_RATIO_EDGES) -> Histogram:
  """Counts of masked values between fixed edges."""
  index = jnp.searchsorted(jnp.asarray(edges), values.reshape(-1), side="right")
  counts = jnp.zeros(len(edges) + 1).at[index].add(mask.reshape(-1).astype(jnp.float32))
  return Histogram(counts, edges)
