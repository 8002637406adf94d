"""FIPO: each token is weighted by what happened to the log-ratios after it."""

import dataclasses
import math

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import prefix

FAMILY = "suffix ratio"


@dataclasses.dataclass(frozen=True)
class Fipo:
  """Hyperparameters of `fipo`."""

  half_life: float = option(32.0, "policy tokens after which a later log-ratio counts half",
                            low=1e-3)
  width: float = option(0.2, "the weight of the future reaches up to 1 + width", low=0.0)
  high_only: bool = option(True, "True: the weight is at least 1; False: at least 1 - width")
  safety: float | None = option(
      10.0, "a negative token above this ratio has a weight within [0.8, 1]; none: never", low=0.0)
  clip_low: float | None = option(0.2, common.CLIP_LOW, low=0.0)
  clip_high: float | None = option(0.28, common.CLIP_HIGH, low=0.0)
  dual_clip: float | None = option(10.0, common.DUAL_CLIP, low=1.0)
  max_dual: int | None = option(
      1, "a row with more tokens beyond the dual clip has no gradient; none: any number", low=0)


def future_weight(log_ratio, advantages, mask, cfg):
  """Returns f_t of `fipo`, [B, L] without gradient.

    F_t = sum over k >= t of gamma^(k - t) M_k l_k,   gamma = 2^(-1 / half_life)
    f_t = clip(exp(F_t), 1 - width or 1, 1 + width)

  k and t count policy tokens. M_k is 0 on tokens above the dual clip.
  """
  log_dual = math.inf if cfg.dual_clip is None else math.log(cfg.dual_clip)
  bounded_log_ratio = jnp.where(log_ratio <= log_dual, log_ratio, 0.0)
  future = prefix.discounted_suffix(bounded_log_ratio, mask, 2.0 ** (-1.0 / cfg.half_life))
  lowest = 1.0 if cfg.high_only else max(0.0, 1.0 - cfg.width)
  weight = jnp.exp(jnp.clip(future, -common.LOG_RATIO_BOUND, common.LOG_RATIO_BOUND))
  weight = jnp.clip(weight, lowest, 1.0 + cfg.width)
  if cfg.safety is not None:
    far = (advantages < 0) & (jnp.exp(log_ratio) > cfg.safety)
    weight = jnp.where(far, jnp.clip(weight, 0.8, 1.0), weight)
  return lax.stop_gradient(weight)


@register("fipo", Fipo)
def fipo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """`ppo` with the dual clip, times a bounded weight of the log-ratios from the token on.

    loss_t  = the loss of `ppo` for the advantage f_t A_t; 0 in removed rows
    removed   rows with more than `max_dual` tokens of A < 0 and r > dual_clip

  Coefficient: f_t r_t A_t; 0 where the coefficient of `ppo` is 0, and in removed rows. With width 0
  it is `ppo`.

  Deviations from the code: removed rows stay in the denominator, as with every filter here; the
  distance of two tokens counts policy tokens, not columns; a width of 0 is 0, where the code has no
  bound but 10.

  Source: arXiv 2603.19835, read in a fork of its code; the hyperparameters are from its 32B script.
  """
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  ratio = jnp.exp(log_ratio)
  weight = future_weight(log_ratio, advantages, mask, cfg)
  negative = advantages < 0
  is_high, is_low = (advantages > 0) & (ratio > high), negative & (ratio < low)
  dual = jnp.zeros_like(mask) if cfg.dual_clip is None else negative & (ratio > cfg.dual_clip)
  no_gradient = is_high | is_low | dual | common.saturated(log_ratio)
  bound = jnp.where(is_high | is_low, jnp.clip(ratio, low, high), ratio)
  bound = jnp.where(dual, cfg.dual_clip or 0.0, bound)
  if cfg.max_dual is not None:
    is_removed = jnp.sum(dual & mask, -1, keepdims=True) > cfg.max_dual
    no_gradient, bound = no_gradient | is_removed, jnp.where(is_removed, 0.0, bound)
  loss = common.gated_surrogate(weight * ratio, weight * bound, no_gradient, log_probs, advantages,
                                mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dual=dual, dropped=no_gradient)
