"""TEMPO: temporal differences on the tree of prefixes that the completions of a prompt form.

A prefix is a sequence of policy tokens, so inserted tool text changes nothing.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl_llm.fields import option, when
from jaxrl_llm.objective.advantages import group, returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked, prefix
from jaxrl_llm.ops.prefix_tree import prefix_means
from jaxrl_llm.types import AdvantageInputs


def temporal_differences(inputs: AdvantageInputs) -> Float[Array, "B L"]:
  """Returns TD_t = V(y_1..t) - V(y_1..t-1), the change of the mean reward when a token is added.

  V(s) is the mean R of the group's kept rows that begin with s; V of the empty prefix is the
  group's mean. TD is exactly 0 where no row leaves the prefix, and on rows that are not usable.
  Over a row it sums to R - mean, unless another row begins with all of this row. Over the rows that
  share a prefix, TD of the next token sums to 0, unless a row ends there.
  """
  usable = returns.usable(inputs)
  # A constant added to V changes no difference; centred, equal rewards give exactly 0.
  difference, _ = group.centred(inputs)
  means, _ = prefix_means(difference, usable, inputs.tokens, inputs.mask, inputs.group_id)
  k = prefix.token_index(inputs.mask)
  with_token = jnp.take_along_axis(means, k, 1)
  without_token = jnp.take_along_axis(means, jnp.maximum(k - 1, 0), 1)
  return masked.masked(with_token - without_token, inputs.mask & usable[:, None])


NORMALIZED = when(".normalize")


@dataclasses.dataclass(frozen=True)
class Tempo:
  """Hyperparameters of `tempo`."""

  normalize: bool = option(True, "divides by the group's standard deviation")
  epsilon: float = option(1e-6, "added to the group's standard deviation", low=0.0, when=NORMALIZED)
  ddof: int = option(1, "1: Bessel's standard deviation (verl, TRL); 0: the population's", low=0,
                     high=1, when=NORMALIZED)


@register("tempo", Tempo)
def tempo(inputs: AdvantageInputs, cfg: Tempo) -> Float[Array, "B L"]:
  """A_t = (R - mean + TD_t) / (std + epsilon); see `temporal_differences`.

  Wherever the completions do not branch this is `grpo`. `ddof` 1 is Bessel's standard deviation of
  R, 0 the population's; `normalize` False divides by 1. A group of one kept row, and equal rewards,
  give 0.

  Deviation: the reference code ends a row's prefix at its first masked token; here later
  policy tokens belong to it.

  Source: arXiv 2509.18314.
  """
  difference, count = group.centred(inputs)
  advantages = difference[:, None] + temporal_differences(inputs)
  if cfg.normalize:
    std = group.standard_deviation(difference, count, inputs, cfg.ddof)
    advantages = group.divided(advantages, std[:, None], cfg.epsilon)
  return returns.constants(advantages, inputs)
