"""Estimators with one ratio per sequence."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "row ratio"  # of all estimators of this module


@dataclasses.dataclass(frozen=True)
class Gspo:
  """Hyperparameters of `gspo`."""

  clip_low: float | None = option(3e-4, common.CLIP_LOW, low=0.0)
  clip_high: float | None = option(4e-4, common.CLIP_HIGH, low=0.0)
  span: str = option("sequence", "tokens that share a ratio: those of the row, or of a turn",
                     choices=("sequence", "segment"))


@register("gspo", Gspo, columns={("span", "segment"): {"turn_id"}})
def gspo(log_probs, anchor_log_probs, advantages, mask, cfg, turn_id=None):
  """Length-normalised sequence ratio, clipped as one ratio.

    s       = exp(mean over policy tokens of log r_t)
    loss_t  = -min(s A_t, clip(s, 1 - clip_low, 1 + clip_high) A_t)

  Coefficient: s A_t, 0 where s is clipped on A's side. The paper's 1/T comes from the aggregation
  (`sequence`). This is the GSPO-token form: where A is constant along a row it equals GSPO in value
  and gradient, and it is also defined elsewhere. log s is at most 10; above, the gradient is 0.

  Args:
    turn_id: [B, L] int, the policy's turn, from 1 to at most L. With `span` segment the mean is
      over the policy tokens of the token's turn: between a token's ratio and a row's.

  Source: arXiv 2507.18071, eqs. 5-7 and 13. `segment` is ROLL's ratio of that name, whose segments
  are runs of policy tokens and whose clip is 0.2; with one advantage per turn the gradient is the
  same as of its form, which differentiates the mean.
  """
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  log_ratio = lax.stop_gradient(log_ratio)
  log_s = masked.row_mean(log_ratio, mask)
  if cfg.span == "segment":
    log_s = _turn_mean(log_ratio, mask, turn_id)
  ratio = jnp.broadcast_to(jnp.exp(jnp.minimum(log_s, common.LOG_WEIGHT_BOUND)), mask.shape)
  is_high, is_low = ratio > high, ratio < low
  overflow = log_s > common.LOG_WEIGHT_BOUND
  no_gradient = ((advantages > 0) & is_high) | ((advantages < 0) & is_low)
  bound = jnp.where(no_gradient, jnp.clip(ratio, low, high), ratio)
  no_gradient |= overflow
  loss = common.gated_surrogate(ratio, bound, no_gradient, log_probs, advantages, mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=no_gradient)


def _turn_mean(log_ratio, mask, turn_id):
  """Returns, for each token, the mean log-ratio of its turn's policy tokens, [B, L]."""
  index = jnp.where(mask, turn_id, 0)
  sums = jax.vmap(functools.partial(jax.ops.segment_sum, num_segments=mask.shape[1] + 1))
  total, count = sums(log_ratio, index), sums(mask.astype(log_ratio.dtype), index)
  return masked.masked(jnp.take_along_axis(masked.safe_divide(total, count), index, 1), mask)


@dataclasses.dataclass(frozen=True)
class SeqIs:
  """Hyperparameters of `seq_is`."""

  cap: float | None = option(None, "truncates the sequence ratio from above; none: unbounded",
                             low=0.0)


@register("seq_is", SeqIs, anchor="behavior")
def seq_is(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Full-sequence importance sampling, the only unbiased choice with sampled outcome rewards.

    W       = prod over policy tokens of r_t       (log W within +-20)
    loss_t  = -stop_gradient(min(W, cap)) A_t log pi(a_t)

  It is unbiased with `fixed` or `sequence_sum` aggregation and cap None: see objective/README.md,
  "What is unbiased for what". Its variance grows exponentially with the length.

  Source: standard importance sampling; the truncated form is Seq-TIS of verl's rollout correction.
  """
  weight, is_high = _sequence_weight(log_probs, anchor_log_probs, mask, cfg.cap)
  loss = common.score_function_surrogate(weight, log_probs, advantages, mask)
  return common.clipped(loss, mask, high=is_high)


@dataclasses.dataclass(frozen=True)
class Gmpo:
  """Hyperparameters of `gmpo`."""

  log_low: float | None = option(
      0.4, "token log-ratios are clipped below -log_low, nats; none: unbounded", low=0.0)
  log_high: float | None = option(
      0.4, "token log-ratios are clipped above log_high, nats; none: unbounded", low=0.0)


@register("gmpo", Gmpo)
def gmpo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Geometric mean of token ratios, each clipped on the side to which its advantage pushes.

    l'_t    = min(l_t, log_high) where A_t > 0,  max(l_t, -log_low) where A_t < 0
    s       = exp(mean over policy tokens of l'_t)
    loss_t  = -s A_t

  Coefficient: s A_t on unclipped tokens, 0 on clipped ones. The paper's 1/T comes from the
  aggregation (`sequence`).

  Source: arXiv 2507.20673 (verl's default is 0.2).
  """
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  is_high = log_ratio > (jnp.inf if cfg.log_high is None else cfg.log_high)
  is_low = log_ratio < (-jnp.inf if cfg.log_low is None else -cfg.log_low)
  is_clipped = ((advantages > 0) & is_high) | ((advantages < 0) & is_low)
  bound = jnp.where(is_high, cfg.log_high or 0.0, -(cfg.log_low or 0.0))
  clipped_log_ratio = jnp.where(is_clipped, bound, log_ratio)
  log_s = jnp.minimum(masked.row_mean(clipped_log_ratio, mask), common.LOG_WEIGHT_BOUND)
  weight = jnp.broadcast_to(jnp.exp(log_s), mask.shape)
  no_gradient = is_clipped | (jnp.abs(log_ratio) >= common.LOG_RATIO_BOUND)
  loss = common.gated_surrogate(weight, weight, no_gradient, log_probs, advantages, mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=no_gradient)


@dataclasses.dataclass(frozen=True)
class Topr:
  """Hyperparameters of `topr`."""

  cap: float | None = option(1.0, "truncates the sequence ratio of negative rows; none: unbounded",
                             low=0.0)


@register("topr", Topr, anchor="behavior")
def topr(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Plain log-likelihood for positive rows, the truncated full-sequence ratio W for negative ones.

    loss_t  = -A_t log pi(a_t)                                  where A_t > 0
    loss_t  = -stop_gradient(min(W, cap)) A_t log pi(a_t)       where A_t < 0

  A_t is meant to be the reward itself, with -1 for wrong rows (advantage `none`, shaping `signed`).

  Source: arXiv 2503.14286; the formula is unconfirmed.
  """
  weight, is_high = _sequence_weight(log_probs, anchor_log_probs, mask, cfg.cap)
  loss = common.score_function_surrogate(jnp.where(advantages > 0, 1.0, weight), log_probs,
                                         advantages, mask)
  is_truncated = is_high & (advantages < 0)
  return common.clipped(loss, mask, high=is_truncated)


@dataclasses.dataclass(frozen=True)
class Vespo:
  """Hyperparameters of `vespo`."""

  k: float = option(2.0, "exponent of the ratio for positive advantages, decay for negative ones",
                    low=0.0)
  lam: float = option(3.0, "decay for positive advantages, exponent of the ratio for negative ones",
                      low=0.0)


@register("vespo", Vespo, anchor="behavior")
def vespo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """A smooth bump over the full-sequence ratio W.

    loss_t  = -stop_gradient(W^a exp(b (1 - W))) A_t log pi(a_t)
    (a, b)  = (k, lam) where A_t > 0, else (lam, k)

  Source: arXiv 2602.10693; constants (2, 3) and (3, 2) from TRL.
  """
  weight, _ = _sequence_weight(log_probs, anchor_log_probs, mask, None)
  positive = advantages > 0
  power, decay = jnp.where(positive, cfg.k, cfg.lam), jnp.where(positive, cfg.lam, cfg.k)
  bump = jnp.exp(power * jnp.log(weight) + decay * (1 - weight))
  loss = common.score_function_surrogate(bump, log_probs, advantages, mask)
  return common.clipped(loss, mask)


def _sequence_weight(log_probs, anchor_log_probs, mask, cap):
  """Returns the row's ratio truncated at `cap`, and where it was truncated, both [B, L]."""
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  log_weight = common.row_log_ratio(log_ratio)
  weight = jnp.broadcast_to(lax.stop_gradient(jnp.exp(log_weight)), mask.shape)
  bound = jnp.inf if cap is None else cap
  return jnp.minimum(weight, bound), weight > bound
