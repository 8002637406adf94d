"""TEMPO: temporal differences on the tree of prefixes that the completions of a prompt form.

A prefix is the sequence of policy tokens, so inserted tool text changes nothing. Prefixes get
numbers instead of being
compared: the number at depth k is that of the pair (number at depth k - 1, token k), one sort of
  [B] per depth, so
that the cost is O(B log B) per column and never pairs of rows.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.fields import option, when
from jaxrl_llm.objective.advantages import group, rewards
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked, prefix
from jaxrl_llm.types import AdvantageInputs


def prefix_means(values: Float[Array, " B"], member: Bool[Array, " B"], tokens: Int[Array, "B L"],
                 mask: Bool[Array, "B L"], group_id: Int[Array, " B"]
                 ) -> tuple[Float[Array, "B L+1"], Int[Array, "B L+1"]]:
  """Mean of `values` over the rows that share a row's first k policy tokens, and how many do, for
  each k.

  Args:
    values: [B], one per row.
    member: [B], rows that count; the others are neither averaged nor counted.
    tokens, mask: [B, L]; only tokens with mask True make a prefix.
    group_id: [B], arbitrary and unsorted; rows of different groups share nothing.

  Returns:
    (mean, count), both [B, L + 1]; column k speaks of the first k policy tokens, column 0 of the
    whole group. A row leaves the count behind its last policy token; its own entries from there on
    are meaningless. Where nobody leaves a prefix, the mean stays the same number, bit for bit.
  """
  rows, width = mask.shape
  column = jnp.where(mask, prefix.token_index(mask) - 1, width)
  compact = jnp.zeros_like(tokens).at[jnp.arange(rows)[:, None], column].set(tokens, mode="drop")
  length = jnp.sum(mask, -1)
  values = masked.masked(values, member)

  def mean_of(number, alive):
    total = lambda x: jax.ops.segment_sum(x, number, num_segments=rows)[number]
    count = total(alive.astype(jnp.int32))
    return masked.safe_divide(total(jnp.where(alive, values, 0)), count.astype(values.dtype)), count

  def deeper(carry, column):
    number, mean, count = carry
    token, k = column
    number = masked.pair_index(number, token)
    below, members = mean_of(number, member & (k <= length))
    mean = jnp.where(members == count, mean, below)
    return (number, mean, members), (mean, members)

  number = masked.group_index(group_id).astype(jnp.int32)
  mean, count = mean_of(number, member)
  _, (means, counts) = lax.scan(deeper, (number, mean, count),
                                (compact.T, jnp.arange(1, width + 1)))
  join = lambda first, rest: jnp.concatenate([first[:, None], rest.T], 1)
  return join(mean, means), join(count, counts)


def temporal_differences(inputs: AdvantageInputs) -> Float[Array, "B L"]:
  """TD_t = V(y_1..t) - V(y_1..t-1), V(s) the mean R over the kept rows of the group that begin with
  s.

  V of the empty prefix is the group's mean. Exactly 0 where no row leaves the prefix, and on rows
  that are not usable. Over a row that ends alone TD sums to R - mean; over the rows of a prefix
  that no row ends with, to 0.
  """
  usable = rewards.usable(inputs)
  # A constant added to V changes no difference; centred, equal rewards give exactly 0.
  difference, _ = group.centred(inputs)
  means, _ = prefix_means(difference, usable, inputs.tokens, inputs.mask, inputs.group_id)
  k = prefix.token_index(inputs.mask)
  after, before = jnp.take_along_axis(means, k,
                                      1), jnp.take_along_axis(means, jnp.maximum(k - 1, 0), 1)
  return masked.masked(after - before, inputs.mask & usable[:, None])


NORMALIZED = when(".normalize")


@dataclasses.dataclass(frozen=True)
class Tempo:
  """Numbers of `tempo`."""

  normalize: bool = option(True, "divides by the group's standard deviation")
  epsilon: float = option(1e-6, "added to the group's standard deviation", low=0.0,
                          when=NORMALIZED)
  ddof: int = option(1, "1: Bessel's standard deviation (verl, TRL); 0: the population's", low=0,
                     high=1, when=NORMALIZED)


@register("tempo", Tempo)
def tempo(inputs: AdvantageInputs, cfg: Tempo) -> Float[Array, "B L"]:
  """A_t = (R - mean + TD_t) / (std + epsilon); see `temporal_differences`.

  Wherever the completions do not branch this is `grpo`. `ddof` 1 is Bessel's standard deviation of
  R, 0 the population's; `normalize` False divides by 1. A group of one kept row, and equal rewards,
  give 0.

  Deviation: the reference ends a row's prefix at its first masked token; here it goes on over
  policy tokens.

  Source: arXiv 2509.18314; methods A2.
  """
  difference, count = group.centred(inputs)
  advantages = difference[:, None] + temporal_differences(inputs)
  if cfg.normalize:
    std = group.standard_deviation(difference, count, inputs, cfg.ddof)
    advantages = group.divided(advantages, std[:, None], cfg.epsilon)
  return rewards.constants(advantages, inputs)
