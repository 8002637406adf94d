"""TEMPO: temporal differences on the tree of prefixes that the completions of a prompt form.

A prefix is a sequence of policy tokens, so inserted tool text changes nothing. Prefixes are not
compared with each other; each gets a number: at depth k, that of the pair (number at depth k - 1,
token k). One sort of [B] per depth finds the pairs, so a column costs O(B log B) and no two rows
are ever compared.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.fields import option, when
from jaxrl_llm.objective.advantages import group, returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked, prefix
from jaxrl_llm.types import AdvantageInputs


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
    whole group. A row leaves the count after its last policy token, and its own entries from there
    on mean nothing. Where no row leaves a prefix, the mean stays the same number, bit for bit.
  """
  rows, width = mask.shape
  column = jnp.where(mask, prefix.token_index(mask) - 1, width)
  compact = jnp.zeros_like(tokens).at[jnp.arange(rows)[:, None], column].set(tokens, mode="drop")
  length = jnp.sum(mask, -1)
  values = masked.masked(values, member)

  def prefix_total(x, number):
    return jax.ops.segment_sum(x, number, num_segments=rows)[number]

  def mean_of(number, alive):
    count = prefix_total(alive.astype(jnp.int32), number)
    total = prefix_total(jnp.where(alive, values, 0), number)
    return masked.safe_divide(total, count.astype(values.dtype)), count

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
  return (jnp.concatenate([mean[:, None], means.T], 1),
          jnp.concatenate([count[:, None], counts.T], 1))


def temporal_differences(inputs: AdvantageInputs) -> Float[Array, "B L"]:
  """TD_t = V(y_1..t) - V(y_1..t-1), the change of the mean reward when a token is added.

  V(s) is the mean R of the group's kept rows that begin with s; V of the empty prefix is the
  group's mean. TD is exactly 0 where no row leaves the prefix, and on rows that are not usable.
  Over a row it sums to R - mean, unless another row begins with the whole row. Over the rows that
  share a prefix, TD of the next token sums to 0, unless a row ends there.
  """
  usable = returns.usable(inputs)
  # A constant added to V changes no difference; centred, equal rewards give exactly 0.
  difference, _ = group.centred(inputs)
  means, _ = prefix_means(difference, usable, inputs.tokens, inputs.mask, inputs.group_id)
  k = prefix.token_index(inputs.mask)
  after = jnp.take_along_axis(means, k, 1)
  before = jnp.take_along_axis(means, jnp.maximum(k - 1, 0), 1)
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

  Deviation: the reference code ends a row's prefix at its first masked token; here it goes on over
  policy tokens.

  Source: arXiv 2509.18314.
  """
  difference, count = group.centred(inputs)
  advantages = difference[:, None] + temporal_differences(inputs)
  if cfg.normalize:
    std = group.standard_deviation(difference, count, inputs, cfg.ddof)
    advantages = group.divided(advantages, std[:, None], cfg.epsilon)
  return returns.constants(advantages, inputs)
