"""Estimators without an importance ratio."""

import dataclasses

import jax.numpy as jnp

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "no ratio"  # of all estimators of this module


@register("reinforce")
def reinforce(log_probs, anchor_log_probs, advantages, mask, cfg):
  """loss_t = -A_t log pi(a_t); the coefficient of grad log pi is A_t.

  The anchor is not read: off-policy this is biased.

  Source: Williams 1992, Machine Learning 8.
  """
  del anchor_log_probs, cfg
  none = jnp.zeros_like(mask)
  loss = common.score_function_surrogate(jnp.ones_like(log_probs), log_probs, advantages, mask)
  return common.output(loss, common.clip_counts(mask, high=none, low=none, dropped=none))


@dataclasses.dataclass(frozen=True)
class Dro:
  """Numbers of `dro`."""

  beta: float = option(0.1, "weight of the squared log-ratio", low=0.0)


@register("dro", Dro, regularized=True)
def dro(log_probs, anchor_log_probs, advantages, mask, cfg):
  """No ratio: the log-likelihood, held near the anchor by a squared log-ratio l_t = log r_t.

    loss_t  = -(A_t log pi(a_t) - (beta / 2) l_t^2)

  Coefficient: A_t - beta l_t, which does not vanish with the advantage.

  Source: after verl's loss of this name; beta is ours.
  """
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  loss = common.score_function_surrogate(jnp.ones_like(log_ratio), log_probs, advantages, mask)
  none = jnp.zeros_like(mask)
  penalty = masked.masked(cfg.beta / 2 * jnp.square(log_ratio), mask)
  return common.output(loss + penalty,
                       common.clip_counts(mask, high=none, low=none, dropped=none))
