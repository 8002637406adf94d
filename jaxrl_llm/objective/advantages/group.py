"""Baselines from the other completions of the same prompt: one number per row, the same on all of
its policy tokens.

R_i is the outcome reward plus the row's token rewards, where there are any. A row with keep False
enters no statistic and gets 0; so does every row of a group with fewer than two kept rows.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import rewards
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import NoNumbers
from jaxrl_llm.types import AdvantageInputs


def centred(inputs: AdvantageInputs) -> tuple[Array, Array]:
  """(R - group mean on usable rows, 0 elsewhere; kept rows of the group), both [B].

  Exactly 0 where all kept rows of the group have the same R: the rounding of the mean would
  otherwise be divided by a standard deviation of the same size.
  """
  keep, totals = rewards.kept(inputs), rewards.totals(inputs)
  count = masked.group_sum(keep.astype(totals.dtype), inputs.group_id)
  mean = masked.safe_divide(masked.group_sum(totals, inputs.group_id), count)
  largest = masked.group_max(jnp.where(keep, totals, -jnp.inf), inputs.group_id)
  smallest = -masked.group_max(jnp.where(keep, -totals, -jnp.inf), inputs.group_id)
  return masked.masked(totals - mean, rewards.usable(inputs) & (largest > smallest)), count


def standard_deviation(centred_rewards: Float[Array, " B"], count: Float[Array, " B"],
                       inputs: AdvantageInputs, ddof: int) -> Float[Array, " B"]:
  """Of the group's rewards, from rewards that are centred; `ddof` 1 is Bessel's, 0 the
  population's.
  """
  squares = masked.group_sum(jnp.square(centred_rewards), inputs.group_id)
  return jnp.sqrt(masked.safe_divide(squares, count - ddof))


def divided(values: Array, std: Array, epsilon: float) -> Array:
  """values / (std + epsilon), and 0 where that divisor is 0."""
  return values / (std + epsilon) if epsilon else masked.safe_divide(values, std)


@dataclasses.dataclass(frozen=True)
class Grpo:
  """Numbers of `grpo`."""

  epsilon: float = option(1e-6, "added to the group's standard deviation", low=0.0)
  ddof: int = option(1, "1: Bessel's standard deviation (verl, TRL); 0: the population's", low=0,
                     high=1)


@register("none", group=False)
def none(inputs: AdvantageInputs, cfg: NoNumbers) -> Float[Array, "B L"]:
  """A = R: no baseline."""
  del cfg
  return rewards.constants(rewards.totals(inputs)[:, None], inputs)


@register("grpo", Grpo)
def grpo(inputs: AdvantageInputs, cfg: Grpo) -> Float[Array, "B L"]:
  """A = (R - mean) / (std + epsilon) over the group.

  `ddof` 1 is Bessel's standard deviation, as in verl and TRL; 0 the population's.

  Source: arXiv 2402.03300, section 4.1.2; methods A11.1.
  """
  difference, count = centred(inputs)
  std = standard_deviation(difference, count, inputs, cfg.ddof)
  return rewards.constants(divided(difference, std, cfg.epsilon)[:, None], inputs)


@register("dr_grpo")
def dr_grpo(inputs: AdvantageInputs, cfg: NoNumbers) -> Float[Array, "B L"]:
  """A = R - group mean, without the standard deviation.

  Source: arXiv 2503.20783; methods A11.4.
  """
  del cfg
  return rewards.constants(centred(inputs)[0][:, None], inputs)


@register("rloo")
def rloo(inputs: AdvantageInputs, cfg: NoNumbers) -> Float[Array, "B L"]:
  """A = R - mean of the other kept rows of the group = n / (n - 1) (R - mean).

  Source: arXiv 2402.14740; methods A11.2.
  """
  del cfg
  difference, count = centred(inputs)
  return rewards.constants((difference * masked.safe_divide(count, count - 1))[:, None], inputs)


@register("opo")
def opo(inputs: AdvantageInputs, cfg: NoNumbers) -> Float[Array, "B L"]:
  """A = R - sum_j L_j R_j / sum_j L_j over the kept rows of the group; L counts policy tokens.

  A row without a policy token has weight 0. Meant for strictly on-policy updates. The same as `otb`
  with granularity `sequence` and weight `uniform`, but for its epsilon.

  Source: arXiv 2505.23585; methods A11.5.
  """
  del cfg
  difference, keep = centred(inputs)[0], rewards.usable(inputs)
  length = masked.masked(jnp.sum(inputs.mask, -1).astype(difference.dtype), keep)
  total = lambda x: masked.group_sum(x, inputs.group_id)
  baseline = masked.safe_divide(total(length * difference), total(length))
  return rewards.constants(masked.masked(difference - baseline, keep)[:, None], inputs)
