"""Baselines from the other completions of the same prompt, the same on all policy tokens of a row.

R_i is the outcome reward of row i, plus its token rewards where there are any. A row with keep
False enters no statistic and gets 0. All rows of a group with fewer than two kept rows get 0.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import NoNumbers
from jaxrl_llm.types import AdvantageInputs


def centred(inputs: AdvantageInputs) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
  """Returns R - group mean (0 on rows that are not usable), and the number of kept rows per group.

  The difference is exactly 0 where all kept rows of the group have the same R. The rounding of the
  mean would otherwise be divided by a standard deviation of the same size.
  """
  keep, totals = returns.keep_mask(inputs), returns.totals(inputs)
  count = masked.group_sum(keep.astype(totals.dtype), inputs.group_id)
  mean = masked.safe_divide(masked.group_sum(totals, inputs.group_id), count)
  largest = masked.group_max(jnp.where(keep, totals, -jnp.inf), inputs.group_id)
  smallest = -masked.group_max(jnp.where(keep, -totals, -jnp.inf), inputs.group_id)
  return masked.masked(totals - mean, returns.usable(inputs) & (largest > smallest)), count


def standard_deviation(centred_rewards: Float[Array, " B"], count: Float[Array, " B"],
                       inputs: AdvantageInputs, ddof: int) -> Float[Array, " B"]:
  """Returns the standard deviation of the group's rewards, given `centred`.

  With `ddof` 1 it is Bessel's, with 0 the population's.
  """
  squares = masked.group_sum(jnp.square(centred_rewards), inputs.group_id)
  return jnp.sqrt(masked.safe_divide(squares, count - ddof))


def divided(values: Array, std: Array, epsilon: float) -> Array:
  """Returns values / (std + epsilon), and 0 where that divisor is 0."""
  return values / (std + epsilon) if epsilon else masked.safe_divide(values, std)


@dataclasses.dataclass(frozen=True)
class Grpo:
  """Hyperparameters of `grpo`."""

  epsilon: float = option(1e-6, "added to the group's standard deviation", low=0.0)
  ddof: int = option(1, "1: Bessel's standard deviation (verl, TRL); 0: the population's", low=0,
                     high=1)


@register("none", group=False)
def none(inputs: AdvantageInputs, cfg: NoNumbers) -> Float[Array, "B L"]:
  """A = R: no baseline."""
  del cfg
  return returns.constants(returns.totals(inputs)[:, None], inputs)


@register("grpo", Grpo)
def grpo(inputs: AdvantageInputs, cfg: Grpo) -> Float[Array, "B L"]:
  """A = (R - mean) / (std + epsilon) over the group.

  `ddof` 1 is Bessel's standard deviation, as in verl and TRL; 0 is the population's.

  Source: arXiv 2402.03300, section 4.1.2.
  """
  difference, count = centred(inputs)
  std = standard_deviation(difference, count, inputs, cfg.ddof)
  return returns.constants(divided(difference, std, cfg.epsilon)[:, None], inputs)


@register("dr_grpo")
def dr_grpo(inputs: AdvantageInputs, cfg: NoNumbers) -> Float[Array, "B L"]:
  """A = R - group mean, without the standard deviation.

  Source: arXiv 2503.20783.
  """
  del cfg
  return returns.constants(centred(inputs)[0][:, None], inputs)


@register("rloo")
def rloo(inputs: AdvantageInputs, cfg: NoNumbers) -> Float[Array, "B L"]:
  """A = R - mean of the other kept rows of the group = n / (n - 1) (R - mean).

  Source: arXiv 2402.14740.
  """
  del cfg
  difference, count = centred(inputs)
  return returns.constants((difference * masked.safe_divide(count, count - 1))[:, None], inputs)


@register("opo")
def opo(inputs: AdvantageInputs, cfg: NoNumbers) -> Float[Array, "B L"]:
  """A = R - sum_j L_j R_j / sum_j L_j over the kept rows of the group; L counts policy tokens.

  A row without a policy token has weight 0. Meant for strictly on-policy updates. It equals `otb`
  with granularity `sequence` and weight `uniform`, but for the epsilon of `otb`.

  Source: arXiv 2505.23585.
  """
  del cfg
  difference, keep = centred(inputs)[0], returns.usable(inputs)
  length = masked.masked(jnp.sum(inputs.mask, -1).astype(difference.dtype), keep)
  weighted_sum = masked.group_sum(length * difference, inputs.group_id)
  baseline = masked.safe_divide(weighted_sum, masked.group_sum(length, inputs.group_id))
  return returns.constants(masked.masked(difference - baseline, keep)[:, None], inputs)
