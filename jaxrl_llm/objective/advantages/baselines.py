"""Other baselines and scales of a group's rewards, the same on all policy tokens of a row.

A row with keep False enters no statistic and gets 0, and so do all rows of a group with fewer than
two kept rows.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import group, returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


@dataclasses.dataclass(frozen=True)
class Maxrl:
  """Hyperparameters of `maxrl`."""

  epsilon: float = option(1e-6, "added to the group's mean", low=0.0)


@register("maxrl", Maxrl)
def maxrl(inputs: AdvantageInputs, cfg: Maxrl) -> Float[Array, "B L"]:
  """A = (R - mean) / (mean + epsilon) over the group, and 0 where the mean is not above 0.

  Rewards are meant to be 0 or 1. A hard prompt then weighs about 1 / p, p being its share of right
  rows: one right row in eight has A = 7, the others -1. As the group grows, the gradient becomes
  the gradient of log p.

  Deviation: a group of one gets 0, as in prime-rl; the authors' code divides by epsilon there.

  Source: arXiv 2602.02710 and its code.
  """
  difference, count = group.centred(inputs)
  rewards = masked.masked(returns.totals(inputs), returns.usable(inputs))
  mean = masked.safe_divide(masked.group_sum(rewards, inputs.group_id), count)
  relative = masked.safe_divide(difference, jnp.where(mean > 0, mean + cfg.epsilon, 0.0))
  return returns.constants(relative[:, None], inputs)


@dataclasses.dataclass(frozen=True)
class Opmd:
  """Hyperparameters of `opmd`."""

  tau: float = option(1.0, "temperature of the mean: large is the mean, small the largest reward",
                      low=1e-3)


@register("opmd", Opmd)
def opmd(inputs: AdvantageInputs, cfg: Opmd) -> Float[Array, "B L"]:
  """A = R - tau log mean exp(R / tau) over the group.

  Its mean over a group is at most 0. With a large tau it is `dr_grpo`.

  Deviations: the code multiplies the loss by 1 / (1 + tau), which belongs to the learning rate. A
  group of one gets 0, in the code its reward.

  Source: `opmd` of Trinity-RFT, "logavgexp"; see arXiv 2509.24203.
  """
  # Centred, so that equal rewards give exactly 0; the log of the mean shifts with R.
  difference, count = group.centred(inputs)
  usable = returns.usable(inputs)
  largest = masked.group_max(jnp.where(usable, difference, -jnp.inf), inputs.group_id)
  largest = jnp.where(usable, largest, 0.0)
  powers = masked.masked(jnp.exp((difference - largest) / cfg.tau), usable)
  mean = masked.safe_divide(masked.group_sum(powers, inputs.group_id), count)
  baseline = largest + cfg.tau * jnp.log(jnp.where(usable, mean, 1.0))
  return returns.constants(masked.masked(difference - baseline, usable)[:, None], inputs)


@dataclasses.dataclass(frozen=True)
class Asymre:
  """Hyperparameters of `asymre`."""

  shift: float = option(-0.1, "added to the baseline: below 0 it emphasises right rows")


@register("asymre", Asymre)
def asymre(inputs: AdvantageInputs, cfg: Asymre) -> Float[Array, "B L"]:
  """A = R - (group mean + shift).

  With the shift -0.1 every advantage is 0.1 higher, also in a group of equal rewards: right rows
  are imitated more than wrong ones are pushed down. With shift 0 it is `dr_grpo`.

  Deviation: a group of one gets 0, in the code its reward.

  Source: arXiv 2506.20520, from Trinity-RFT's code.
  """
  difference, _ = group.centred(inputs)
  excess = masked.masked(difference - cfg.shift, returns.usable(inputs))
  return returns.constants(excess[:, None], inputs)


@dataclasses.dataclass(frozen=True)
class Opob:
  """Hyperparameters of `opob`."""

  importance: str = option("product", "weight of a row's gradient: product of its ratios to the "
                           "sampler, or 1", choices=("product", "none"))
  normalize: bool = option(False, "divides by the group's standard deviation (the population's)")


@register("opob", Opob, needs={"row_gradient"})
def opob(inputs: AdvantageInputs, cfg: Opob) -> Float[Array, "B L"]:
  """A = R - sum_j e_j R_j / sum_j e_j over the group;   e = W^2 g^2, in log space.

  g is the norm of the gradient of the row's log-probability, W the product of its ratios pi / mu,
  not clipped; training/row_gradients.py finds log e. So b minimises sum_j e_j (R_j - b)^2. With
  equal e it is `dr_grpo`; g^2 proportional to the row's length and W = 1 make it `opo`.

  Deviations: the code adds 1e-8 to the sum of e, which here is relative to the group's largest; a
  group of one gets 0, in the code about 0. Its medians and winsorised means are left out, as are
  its baseline of the batch, truncated W and g per token.

  Source: VCPO, arXiv 2602.17616, and its code, which divides by the deviation in the script for
  mathematics.
  """
  difference, count = group.centred(inputs)
  live = inputs.mask & returns.usable(inputs)[:, None]
  energy = jnp.max(jnp.where(live, inputs.columns["row_gradient"], -jnp.inf), -1)
  largest = masked.group_max(energy, inputs.group_id)
  weight = jnp.exp(energy - jnp.where(jnp.isfinite(largest), largest, 0.0))
  baseline = masked.safe_divide(masked.group_sum(weight * difference, inputs.group_id),
                                masked.group_sum(weight, inputs.group_id))
  advantage = masked.masked(difference - baseline, returns.usable(inputs))
  if cfg.normalize:
    std = group.standard_deviation(difference, count, inputs, 0)
    advantage = masked.safe_divide(advantage, std)
  return returns.constants(advantage[:, None], inputs)
