"""The tree of prefixes that the rows of a group form, and means over the rows that begin alike.

Prefixes are not compared with each other; each gets a number: at depth k, the number of the pair
(number at depth k - 1, token k). One sort of [B] per depth finds the pairs, so each column costs
O(B log B) and no two rows are ever compared.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.ops import masked, prefix


def prefix_means(values: Float[Array, " B"], member: Bool[Array, " B"], tokens: Int[Array, "B L"],
                 mask: Bool[Array, "B L"], group_id: Int[Array, " B"]
                 ) -> tuple[Float[Array, "B L+1"], Int[Array, "B L+1"]]:
  """Returns, for each prefix of a row, how many rows of the group share it and their mean value.

  Args:
    values: [B], one per row.
    member: [B], rows that count; the others are neither averaged nor counted.
    tokens, mask: [B, L]; only tokens with mask True make a prefix.
    group_id: [B], arbitrary and unsorted; rows of different groups share nothing.

  Returns:
    (mean, count), both [B, L + 1]. Column k is about the first k policy tokens, column 0 about the
    full group. A row leaves the count after its last policy token, and its own entries from there
    on mean nothing. Where no row leaves a prefix, the mean stays the same number, bit for bit.
  """
  rows, width = mask.shape
  column = jnp.where(mask, prefix.token_index(mask) - 1, width)
  compact = jnp.zeros_like(tokens).at[jnp.arange(rows)[:, None], column].set(tokens, mode="drop")
  length = jnp.sum(mask, -1)
  values = masked.masked(values, member)

  def prefix_total(x, node_id):
    return jax.ops.segment_sum(x, node_id, num_segments=rows)[node_id]

  def mean_of(node_id, active):
    count = prefix_total(active.astype(jnp.int32), node_id)
    total = prefix_total(jnp.where(active, values, 0), node_id)
    return masked.safe_divide(total, count.astype(values.dtype)), count

  def step(carry, column):
    node_id, mean, count = carry
    token, k = column
    node_id = masked.pair_index(node_id, token)
    child_mean, members = mean_of(node_id, member & (k <= length))
    mean = jnp.where(members == count, mean, child_mean)
    return (node_id, mean, members), (mean, members)

  node_id = masked.group_index(group_id).astype(jnp.int32)
  mean, count = mean_of(node_id, member)
  _, (means, counts) = lax.scan(step, (node_id, mean, count), (compact.T, jnp.arange(1, width + 1)))
  return (jnp.concatenate([mean[:, None], means.T], 1),
          jnp.concatenate([count[:, None], counts.T], 1))
