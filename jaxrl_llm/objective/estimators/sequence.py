"""Estimators with one ratio per sequence."""

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked


@register("gspo", clip_low=3e-4, clip_high=4e-4)
def gspo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Length-normalised sequence ratio, clipped as a whole.

    s       = exp(mean over policy tokens of log r_t)
    loss_t  = -min(s A_t, clip(s, 1 - clip_low, 1 + clip_high) A_t)

  Coefficient: s A_t, 0 where s is clipped on A's side. The paper's 1/T is the aggregation's (`sequence`). This is the
  GSPO-token form, equal in value and gradient to GSPO where A is constant along a row, and defined where it is not.
  log s is at most 10; above, the gradient is 0.

  Source: arXiv 2507.18071, eqs. 5-7 and 13; methods E9.
  """
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  log_s = lax.stop_gradient(masked.row_mean(log_ratio, mask))
  ratio = jnp.broadcast_to(jnp.exp(jnp.minimum(log_s, common.LOG_WEIGHT_BOUND)), mask.shape)
  above, below = ratio > high, ratio < low
  saturated = log_s > common.LOG_WEIGHT_BOUND
  dropped = ((advantages > 0) & above) | ((advantages < 0) & below)
  bound = jnp.where(dropped, jnp.clip(ratio, low, high), ratio)
  dropped |= saturated
  loss = common.gated_surrogate(ratio, bound, dropped, log_probs, advantages, mask)
  return common.output(loss, common.clip_counts(mask, high=above, low=below, dropped=dropped))


@register("seq_is", anchor="behavior", cap=None)
def seq_is(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Full-sequence importance sampling: the one unbiased choice with sampled outcome rewards (methods E25).

    W       = prod over policy tokens of r_t       (log W within +-20)
    loss_t  = -stop_gradient(min(W, cap)) A_t log pi(a_t)

  Unbiased with `fixed` or `sequence_sum` aggregation and cap None; its variance grows exponentially with the length.

  Source: methods E8; the truncated form is Seq-TIS, E21.
  """
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  log_weight = jnp.clip(jnp.sum(log_ratio, -1, keepdims=True), -common.LOG_RATIO_BOUND, common.LOG_RATIO_BOUND)
  weight = jnp.broadcast_to(jnp.exp(log_weight), mask.shape)
  above, none = weight > (jnp.inf if cfg.cap is None else cfg.cap), jnp.zeros_like(mask)
  weight = weight if cfg.cap is None else jnp.minimum(weight, cfg.cap)
  loss = common.score_function_surrogate(weight, log_probs, advantages, mask)
  return common.output(loss, common.clip_counts(mask, high=above, low=none, dropped=none))
