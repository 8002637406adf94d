"""REINFORCE: no importance ratio."""

import jax.numpy as jnp

from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register


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
