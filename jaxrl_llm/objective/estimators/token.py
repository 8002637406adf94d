"""Estimators whose ratio is the current token's."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "token ratio"  # of all estimators of this module


@dataclasses.dataclass(frozen=True)
class Ppo:
  """Hyperparameters of `ppo`."""

  clip_low: float | None = option(0.2, common.CLIP_LOW, low=0.0)
  clip_high: float | None = option(0.2, common.CLIP_HIGH, low=0.0)
  dual_clip: float | None = option(None, common.DUAL_CLIP, low=1.0)


@register("ppo", Ppo)
def ppo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Clipped token ratio; with group advantages this is GRPO's loss.

    r_t     = pi(a_t) / anchor(a_t)
    loss_t  = -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)
    A_t < 0 : with dual clip, at most -dual_clip A_t

  Coefficient: r_t A_t; 0 where (A > 0 and r > 1 + clip_high), (A < 0 and r < 1 - clip_low),
  (A < 0 and r > dual_clip), or |log r| >= 20. clip_high = 0.28 is DAPO's clip-higher.

  Source: arXiv 1707.06347, eq. 7; dual clip: 1912.09729; asymmetric clip (DAPO): 2503.14476.
  """
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  ratio = jnp.exp(log_ratio)
  is_high, is_low, negative = ratio > high, ratio < low, advantages < 0
  dual = jnp.zeros_like(mask) if cfg.dual_clip is None else negative & (ratio > cfg.dual_clip)
  overflow = jnp.abs(log_ratio) >= common.LOG_RATIO_BOUND
  no_gradient = ((advantages > 0) & is_high) | (negative & is_low) | dual | overflow
  clipped_ratio = jnp.where(jnp.where(negative, is_low, is_high), jnp.clip(ratio, low, high), ratio)
  bound = jnp.where(dual, cfg.dual_clip or 0.0, clipped_ratio)
  loss = common.gated_surrogate(ratio, bound, no_gradient, log_probs, advantages, mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dual=dual, dropped=no_gradient)


@dataclasses.dataclass(frozen=True)
class Cispo:
  """Hyperparameters of `cispo`."""

  clip_low: float | None = option(None, common.CLIP_LOW, low=0.0)
  clip_high: float | None = option(4.0, common.CLIP_HIGH, low=0.0)


@register("cispo", Cispo, anchor="behavior")
def cispo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Clipped ratio as a constant weight: a clipped token keeps its gradient.

    loss_t  = -stop_gradient(clip(r_t, 1 - clip_low, 1 + clip_high)) A_t log pi(a_t)

  Coefficient: clip(r_t) A_t, never 0 unless clip_low >= 1 lets r_t vanish.

  Source: arXiv 2506.13585; the upper bound 1 + clip_high = 5 is ScaleRL's, 2510.13786.
  """
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  ratio = jnp.exp(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  loss = common.score_function_surrogate(jnp.clip(ratio, low, high), log_probs, advantages, mask)
  return common.clipped(loss, mask, high=ratio > high, low=ratio < low)


@dataclasses.dataclass(frozen=True)
class Sapo:
  """Hyperparameters of `sapo`."""

  tau_pos: float = option(1.0, "temperature of the gate where the advantage is positive", low=1e-6)
  tau_neg: float = option(1.05, "temperature of the gate elsewhere", low=1e-6)


@register("sapo", Sapo)
def sapo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """A smooth gate instead of a clip.

    g_t     = sigmoid(tau (r_t - 1)),   tau = tau_pos where A_t > 0, else tau_neg
    loss_t  = -(4 / tau) g_t A_t

  Coefficient: 4 g_t (1 - g_t) r_t A_t; A_t at r_t = 1 for every tau. 0 where |log r| >= 20.

  Source: arXiv 2511.20347.
  """
  ratio = jnp.exp(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  tau = jnp.where(advantages > 0, cfg.tau_pos, cfg.tau_neg)
  gate = -(4 / tau) * jax.nn.sigmoid(tau * (ratio - 1))
  loss = gate * lax.stop_gradient(masked.masked(advantages, mask))
  return common.clipped(masked.masked(loss, mask), mask)
