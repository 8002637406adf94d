"""Estimators that drop a token if its probability has moved too far, whatever its ratio."""

import dataclasses

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked, prefix

FAMILY = "token ratio, probability bound"  # of all estimators of this module

MASK_ANCHOR = ("policy whose probabilities the mask compares: the ratio's anchor, or that of the "
               "start of the update phase")
RECOMPUTED = {("mask_anchor", "recomputed"): {"recomputed_log_probs"}}


@dataclasses.dataclass(frozen=True)
class DppoTv:
  """Hyperparameters of `dppo_tv`."""

  delta_low: float | None = option(
      0.2, "fall of the probability after which a negative advantage stops; none: never", low=0.0)
  delta_high: float | None = option(
      0.2, "rise of the probability after which a positive advantage stops; none: never", low=0.0)
  ratio_cap: float | None = option(20.0, "truncates the token ratio; none: unbounded", low=0.0)
  mask_anchor: str = option("ratio", MASK_ANCHOR, choices=("ratio", "recomputed"))


@register("dppo_tv", DppoTv, anchor="behavior", columns=RECOMPUTED)
def dppo_tv(log_probs, anchor_log_probs, advantages, mask, cfg, recomputed_log_probs=None):
  """Drops a token whose probability has already moved far in the advantage's direction.

    keep    = pi - mu <= delta_high where A_t > 0,   pi - mu >= -delta_low where A_t < 0
    loss_t  = -keep stop_gradient(min(r_t, ratio_cap)) A_t log pi(a_t)

  Args:
    recomputed_log_probs: [B, L], of the policy at the start of the update phase. With `mask_anchor`
      recomputed, `keep` compares pi with them; the ratio is still pi / anchor.

  Source: arXiv 2602.04879; the cap is from its loss (verl's config has 3). The thresholds 0.2 are
  prime-rl's; the authors' run (verl, examples/dppo_trainer) has 0.15 and no cap, which the preset
  sets. `mask_anchor=recomputed`: the recompute form of sail-sg/Stable-RL.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  mask_anchor = recomputed_log_probs if cfg.mask_anchor == "recomputed" else anchor_log_probs
  _, policy, anchor = _probabilities(log_probs, mask_anchor, mask)
  shift = policy - anchor
  return _masked_ratio(log_ratio, _beyond(shift, shift, cfg), log_probs, advantages, mask, cfg)


@dataclasses.dataclass(frozen=True)
class DppoKl(DppoTv):
  """Hyperparameters of `dppo_kl`."""

  delta_low: float | None = option(
      0.05, "divergence, nats, after which a negative advantage stops; none: never", low=0.0)
  delta_high: float | None = option(
      0.05, "divergence, nats, after which a positive advantage stops; none: never", low=0.0)


@register("dppo_kl", DppoKl, anchor="behavior", columns=RECOMPUTED)
def dppo_kl(log_probs, anchor_log_probs, advantages, mask, cfg, recomputed_log_probs=None):
  """`dppo_tv` with a KL divergence as the distance.

  It is KL(mu || pi) over two outcomes: the sampled token, and any other.

  Args:
    recomputed_log_probs: see `dppo_tv`.

  Source: arXiv 2602.04879; 0.05 is the threshold of the authors' run.
  """
  weight_log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  mask_anchor = recomputed_log_probs if cfg.mask_anchor == "recomputed" else anchor_log_probs
  log_ratio, policy, anchor = _probabilities(log_probs, mask_anchor, mask)
  other_anchor, other_policy = jnp.maximum(1 - anchor, 1e-9), jnp.maximum(1 - policy, 1e-9)
  other_log_ratio = jnp.log(other_anchor) - jnp.log(other_policy)
  distance = -anchor * log_ratio + other_anchor * other_log_ratio
  shift = policy - anchor
  signed_distance = jnp.sign(shift) * distance
  beyond = _beyond(shift, signed_distance, cfg)
  return _masked_ratio(weight_log_ratio, beyond, log_probs, advantages, mask, cfg)


@dataclasses.dataclass(frozen=True)
class Cppo:
  """Hyperparameters of `cppo`."""

  d: float = option(0.15, "budget of one token, total variation", low=0.0)
  d_b: float = option(0.02, "further budget per unit of position weight", low=0.0)
  w_min: float = option(0.8, "position weight of the last token", low=0.0, high=1.0)
  adaptive: bool = option(False, "the further budget is the row's 0.9 quantile of the moves, kept "
                                 "between d_b and 2 d_b")


@register("cppo", Cppo, anchor="behavior")
def cppo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """A budget of total variation that accumulates along the row and weighs early tokens more.

    D_t     = |pi - mu| of the sampled token           w_t = 1 - (1 - w_min)(t - 1)/(T - 1)
    cap_t   = min(d, d + d_b sum_{i<t} w_i - sum_{i<t} w_i D_i)
    keep    = A_t (r_t - 1) <= 0  or  w_t D_t <= cap_t
    loss_t  = -keep r_t A_t

  The sums run over all policy tokens, kept or not. D is the paper's binary form; its top-20 form
  would need the full vocabulary. With `adaptive`, d_b is for each row the 0.9 quantile of its D,
  interpolated linearly and kept within [d_b, 2 d_b].

  Source: arXiv 2606.10968 v2 (d 0.15 for dense models). The official code (verl pull request 6731,
  UniRL 58) is always adaptive, with d 0.2, w_min 0.8 and d_b 0.02; a constant d_b is the paper's
  setting for post-trained models.
  """
  log_ratio, policy, anchor = _probabilities(log_probs, anchor_log_probs, mask)
  index = prefix.token_index(mask).astype(log_ratio.dtype)
  steps = jnp.max(index, -1, keepdims=True) - 1
  weight = 1 - (1 - cfg.w_min) * masked.safe_divide(index - 1, steps)
  shift = jnp.abs(policy - anchor)
  spent = weight * shift
  bound = cfg.d_b
  if cfg.adaptive:
    bound = jnp.clip(masked.row_quantile(shift, mask, 0.9), cfg.d_b, 2 * cfg.d_b)
  allowance = cfg.d + bound * _sum_before(weight, mask)
  cap = jnp.minimum(cfg.d, allowance - _sum_before(spent, mask))
  over = (spent > cap) & (log_ratio != 0)
  no_gradient = over & (advantages * log_ratio > 0) | (jnp.abs(log_ratio) >= common.LOG_RATIO_BOUND)
  ratio = jnp.exp(log_ratio)
  loss = common.gated_surrogate(ratio, jnp.zeros_like(ratio), no_gradient, log_probs, advantages,
                                mask)
  is_high, is_low = over & (log_ratio > 0), over & (log_ratio < 0)
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=no_gradient)


def _sum_before(values, mask):
  """Returns, for each token, the sum of `values` over the earlier policy tokens of its row."""
  return prefix.cumulative_log_ratio(values, mask) - masked.masked(values, mask)


def _probabilities(log_probs, anchor_log_probs, mask):
  """Returns log ratio, pi and mu without gradient; pi and mu are 1 where mask is False."""
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  log_policy = lax.stop_gradient(masked.masked(log_probs, mask))
  log_anchor = lax.stop_gradient(masked.masked(anchor_log_probs, mask))
  return log_ratio, jnp.exp(log_policy), jnp.exp(log_anchor)


def _beyond(shift, distance, cfg):
  """Returns where a token is beyond the threshold above, and below.

  Args:
    moved: pi - mu.
    distance: with the sign of `moved`.
  """
  is_high = (shift > 0) & (distance > (jnp.inf if cfg.delta_high is None else cfg.delta_high))
  is_low = (shift < 0) & (distance < (-jnp.inf if cfg.delta_low is None else -cfg.delta_low))
  return is_high, is_low


def _masked_ratio(log_ratio, beyond, log_probs, advantages, mask, cfg):
  """Returns DPPO's loss, in which a token beyond the threshold on the advantage's side is dropped.

  Args:
    beyond: of `_beyond`.
  """
  is_high, is_low = beyond
  no_gradient = ((advantages > 0) & is_high) | ((advantages < 0) & is_low)
  ratio = jnp.minimum(jnp.exp(log_ratio), jnp.inf if cfg.ratio_cap is None else cfg.ratio_cap)
  loss = common.score_function_surrogate(jnp.where(no_gradient, 0.0, ratio), log_probs, advantages,
                                         mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=no_gradient)
