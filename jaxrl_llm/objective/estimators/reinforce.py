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
  loss = common.score_function_surrogate(jnp.ones_like(log_probs), log_probs, advantages, mask)
  return common.clipped(loss, mask)


@dataclasses.dataclass(frozen=True)
class Dro:
  """Hyperparameters of `dro`."""

  beta: float = option(0.1, "weight of the squared log-ratio", low=0.0)
  span: str = option("token", "what is squared: a token's log-ratio, or the sum of the row's",
                     choices=("token", "sequence"))


@register("dro", Dro, regularized=True)
def dro(log_probs, anchor_log_probs, advantages, mask, cfg):
  """No ratio: the log-likelihood, held near the anchor by a squared log-ratio l_t = log r_t.

    token     loss_t  = -(A_t log pi(a_t) - (beta / 2) l_t^2)
    sequence  sum of the row's losses = -sum_t A_t log pi(a_t) + (beta / 2) (sum_t l_t)^2

  Coefficient: A_t - beta l_t, or A_t - beta sum_t l_t on every token of the row. Neither vanishes
  with the advantage. With `sequence` the row's penalty is shared evenly by its T tokens.

  Source: Kimi k1.5, arXiv 2501.12599, which has the formula of `sequence`; the token form and 0.1
  are from ROLL, and the token form is verl's loss of this name.
  """
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  if cfg.span == "sequence":
    total = jnp.sum(log_ratio, -1, keepdims=True)
    count = jnp.sum(mask, -1, keepdims=True)
    loss = -masked.masked(advantages, mask) * masked.masked(log_probs, mask)
    loss += masked.safe_divide(cfg.beta / 2 * jnp.square(total), count)
    coefficient = masked.masked(advantages, mask) - cfg.beta * total
    loss = common.with_coefficient(loss, coefficient, log_probs, mask)
  else:
    loss = common.score_function_surrogate(jnp.ones_like(log_ratio), log_probs, advantages, mask)
    loss += masked.masked(cfg.beta / 2 * jnp.square(log_ratio), mask)
  return common.clipped(loss, mask)
