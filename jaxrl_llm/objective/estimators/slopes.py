"""Estimators with another slope than the clipped token ratio: bounded beyond it, or inverted."""

import dataclasses

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "token ratio"


@dataclasses.dataclass(frozen=True)
class CeGppo:
  """Hyperparameters of `ce_gppo`."""

  beta_low: float = option(0.5, "slope left below the window, for negative advantages", low=0.0)
  beta_high: float = option(1.0, "slope left above the window, for positive advantages", low=0.0)
  clip_low: float = option(0.2, "the window of the ratio begins at 1 - clip_low", low=0.0, high=1.0)
  clip_high: float = option(0.2, "the window of the ratio ends at 1 + clip_high", low=0.0)
  dual_clip: float | None = option(10.0, common.DUAL_CLIP, low=1.0)


@register("ce_gppo", CeGppo)
def ce_gppo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """`ppo` whose clipped branch keeps a bounded slope instead of none.

  Coefficient, and minus the loss's value:
    beta_low (1 - clip_low) A_t     where A_t < 0 and r_t < 1 - clip_low
    beta_high (1 + clip_high) A_t   where A_t > 0 and r_t > 1 + clip_high
    r_t A_t                         elsewhere
  For A_t < 0 and r_t > dual_clip the loss is the constant -dual_clip A_t. The coefficient is 0
  where |log r| >= 20. Both value and slope jump at a bound unless beta is 1. With both betas 1 this
  is GPPO; with both 0, `ppo`.

  Source: arXiv 2509.20712 (GPPO: 2508.07629). The hyperparameters are from the authors' 1.5B
  script; their 7B script has beta_low 0.75, their function 0.25 and dual_clip 3.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  ratio = jnp.exp(log_ratio)
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  negative = advantages < 0
  is_high, is_low = (advantages > 0) & (ratio > high), negative & (ratio < low)
  weight = jnp.where(is_high, cfg.beta_high * high, jnp.where(is_low, cfg.beta_low * low, ratio))
  dual = jnp.zeros_like(mask) if cfg.dual_clip is None else negative & (ratio > cfg.dual_clip)
  no_gradient = dual | common.saturated(log_ratio)
  bound = jnp.where(dual, cfg.dual_clip or 0.0, weight)
  loss = common.gated_surrogate(weight, bound, no_gradient, log_probs, advantages, mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dual=dual, dropped=no_gradient)


@dataclasses.dataclass(frozen=True)
class Aspo:
  """Hyperparameters of `aspo`."""

  clip: float = option(0.2, "half width of the window of tokens of low entropy", low=0.0, high=1.0)
  clip_entropy: float = option(0.4, "half width of the window of tokens of high entropy", low=0.0,
                               high=1.0)
  entropy_quantile: float = option(0.8, "entropies above this quantile of the row are high",
                                   low=0.0, high=1.0)
  cap: float = option(3.0, "largest weight of a token; the gradient stays beyond", low=1.0)


@register("aspo", Aspo, columns={"entropy"})
def aspo(log_probs, anchor_log_probs, advantages, mask, cfg, entropy):
  """The inverse ratio for positive advantages: rare right tokens are learned faster.

    A_t > 0   c_t = min(1 / r_t, cap) A_t,  0 where r_t > 1 + clip
    A_t < 0   c_t = min(r_t, cap) A_t,      0 where r_t < 1 - clip

  `clip_entropy` replaces `clip` on tokens whose entropy exceeds the row's quantile, interpolated
  linearly over its policy tokens. The loss is -c_t log pi; only its gradient has a meaning.

  Args:
    entropy: [B, L], nats, of the anchor's distribution at each token.

  Source: arXiv 2510.06062 (Archer 2.0), whose code has these hyperparameters fixed, and takes the
  current policy's entropy.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  entropy = masked.masked(entropy, mask)
  wide = entropy > masked.row_quantile(entropy, mask, cfg.entropy_quantile)
  width = jnp.where(wide, cfg.clip_entropy, cfg.clip)
  ratio = jnp.exp(log_ratio)
  is_high, is_low = (advantages > 0) & (ratio > 1 + width), (advantages < 0) & (ratio < 1 - width)
  weight = jnp.minimum(jnp.exp(jnp.where(advantages > 0, -log_ratio, log_ratio)), cfg.cap)
  no_gradient = is_high | is_low
  loss = common.score_function_surrogate(jnp.where(no_gradient, 0.0, weight), log_probs, advantages,
                                         mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=no_gradient)
