"""Estimators whose ratio is that of the current token."""

import jax.numpy as jnp

from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register


@register("ppo", clip_low=0.2, clip_high=0.2, dual_clip=None)
def ppo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Clipped token ratio; with group advantages this is GRPO, with clip_high = 0.28 DAPO's clip-higher.

    r_t     = pi(a_t) / anchor(a_t)
    loss_t  = -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)
    A_t < 0 : with dual clip, at most -dual_clip A_t

  Coefficient: r_t A_t; 0 where (A > 0 and r > 1 + clip_high), (A < 0 and r < 1 - clip_low), (A < 0 and r > dual_clip),
  or |log r| >= 20.

  Source: arXiv 1707.06347, eq. 7; dual clip 1912.09729; asymmetric clip 2503.14476; methods E5, E6.
  """
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  ratio = jnp.exp(log_ratio)
  above, below, negative = ratio > high, ratio < low, advantages < 0
  dual = jnp.zeros_like(mask) if cfg.dual_clip is None else negative & (ratio > cfg.dual_clip)
  saturated = jnp.abs(log_ratio) >= common.LOG_RATIO_BOUND
  dropped = ((advantages > 0) & above) | (negative & below) | dual | saturated
  clipped = jnp.where(jnp.where(negative, below, above), jnp.clip(ratio, low, high), ratio)
  bound = jnp.where(dual, cfg.dual_clip or 0.0, clipped)
  loss = common.gated_surrogate(ratio, bound, dropped, log_probs, advantages, mask)
  return common.output(loss, common.clip_counts(mask, high=above, low=below, dual=dual, dropped=dropped))
