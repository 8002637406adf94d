"""Advantages whose expected gradient is the gradient of pass@k, the chance that one of k rows is
right.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import group, returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs, Mean

_EPSILON = 1e-6  # added to standard deviations


@dataclasses.dataclass(frozen=True)
class PassK:
  """Hyperparameters of `pass_k`."""

  k: int = option(2, "rows of which one has to be right", low=1)


def _all_wrong(num_wrong: Array, count: Array, k: int) -> Array:
  """Returns C(num_wrong, k) / C(count, k), the chance that k of the rows are all wrong.

  It is 0 if k > num_wrong.
  """
  share = jnp.ones_like(num_wrong)
  for i in range(k):
    share = share * masked.safe_divide(jnp.maximum(num_wrong - i, 0), count - i)
  return share


def _enough(inputs: AdvantageInputs, k: int) -> Array:
  """Returns the kept rows of groups with at least k kept rows, and at least two, [B]."""
  keep = returns.keep_mask(inputs)
  count = masked.group_sum(keep.astype(jnp.int32), inputs.group_id)
  return keep & (count >= max(k, 2))


def too_few_rows(inputs: AdvantageInputs, cfg: PassK) -> dict[str, Mean]:
  """Returns the share of kept rows whose group has fewer than k kept rows, so that A is 0."""
  keep = returns.keep_mask(inputs)
  lacking = keep & ~_enough(inputs, cfg.k)
  return {"advantage/too_few": masked.mean(lacking.astype(jnp.float32), keep)}


@register("pass_k", PassK, metrics=too_few_rows)
def pass_k(inputs: AdvantageInputs, cfg: PassK) -> Float[Array, "B L"]:
  """The advantage of a row for the reward of k rows together, which is right if one of them is.

  With n kept rows in the group, N of them wrong:

    p     = 1 - C(N, k) / C(n, k),   s = sqrt(p (1 - p)) + 1e-6
    right   A = (1 - p) / s
    wrong   A = (1 - p - C(N - 1, k - 1) / C(n - 1, k - 1)) / s

  A row is right if its outcome is above 0; token rewards are not read. The sum over a group is 0.
  With fewer than k wrong rows A is 0: solved prompts give no gradient. A is also 0 with n = k,
  where there is only one set, and with n < k, a share that `advantage/too_few` reports. With k = 1
  it is `grpo` with the population's standard deviation.

  Source: arXiv 2508.10751, passk_adv.py of its code. Its k is a setting; 2 is ours.
  """
  usable = _enough(inputs, cfg.k)
  rewards = returns.outcomes(inputs)
  count = masked.group_sum(usable.astype(rewards.dtype), inputs.group_id)
  num_wrong = masked.group_sum((usable & (rewards <= 0)).astype(rewards.dtype), inputs.group_id)
  miss_rate = _all_wrong(num_wrong, count, cfg.k)
  without_row = _all_wrong(jnp.maximum(num_wrong - 1, 0), count - 1, cfg.k - 1)
  deviation = jnp.sqrt(miss_rate * (1 - miss_rate))
  advantages = jnp.where(rewards > 0, miss_rate, miss_rate - without_row) / (deviation + _EPSILON)
  advantages = masked.masked(advantages, usable & (deviation > 0))
  return returns.constants(advantages[:, None], inputs)


@dataclasses.dataclass(frozen=True)
class PassKBest:
  """Hyperparameters of `pass_k_best`."""

  normalize: bool = option(True, "divides by the group's standard deviation, Bessel's")


@register("pass_k_best", PassKBest)
def pass_k_best(inputs: AdvantageInputs, cfg: PassKBest) -> Float[Array, "B L"]:
  """The best row of a group gets its lead over the second best, all others 0.

    A = (R_1 - R_2) / (std + 1e-6)

  Where several rows are the best, the lead is 0.

  Source: arXiv 2503.19595, from verl's code, which fails for a group of one; here it gets 0.
  """
  difference, count = group.centred(inputs)
  usable = returns.usable(inputs)
  candidates = jnp.where(usable, difference, -jnp.inf)
  first = masked.group_max(candidates, inputs.group_id)
  best = usable & (difference == first)
  is_unique = masked.group_sum(best.astype(jnp.int32), inputs.group_id) == 1
  second = masked.group_max(jnp.where(best, -jnp.inf, candidates), inputs.group_id)
  lead = jnp.where(best & is_unique, difference - jnp.where(is_unique, second, 0.0), 0.0)
  if cfg.normalize:
    std = group.standard_deviation(difference, count, inputs, 1)
    lead = group.divided(lead, std, _EPSILON)
  return returns.constants(lead[:, None], inputs)
