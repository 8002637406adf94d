"""Estimators for which a token's loss depends on the other tokens of the optimizer batch."""

import dataclasses
import math

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option, when
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "token ratio, batch statistic"  # of all estimators of this module


@dataclasses.dataclass(frozen=True)
class M2po:
  """Hyperparameters of `m2po`."""

  tau: float | None = option(
      0.04, "bound on the mean squared log-ratio of the kept tokens, above 0; none: keeps all",
      low=1e-12)  # with 0 no token is kept, not even where the policy has not moved
  m2_scope: str = option(
      "away", "tokens that may be dropped; away: only those moving away from the anchor",
      choices=("away", "all"))
  m2_rule: str = option(
      "drop", "drop: the largest squares go; cap: a window up to the largest that may stay",
      choices=("drop", "cap"))
  min_low: float | None = option(None, "the window of `cap` reaches down to 1 - min_low at least",
                                 low=0.0, high=1.0, when=when(".m2_rule", "cap"))
  min_high: float | None = option(None, "the window of `cap` reaches up to 1 + min_high at least",
                                  low=0.0, when=when(".m2_rule", "cap"))


def m2_weights(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Returns what the optimizer batch says about each token, [B, L].

  Eligible are the policy tokens that the update moves further from the anchor: those whose
  log-ratio has the sign of the advantage (`m2_scope` away), or all (all). With n eligible tokens of
  squared log-ratios v_1 <= ... <= v_n:

    drop    1 on kept tokens, else 0. The k smallest stay, k being the largest number whose mean is
            <= tau (away), or < tau (all). Equal squares go together, so that the order of rows
            does not matter.
    cap     the same number everywhere: the largest v_k with mean(min(v, v_k)) < tau, 0 if there is
            none, and infinity if mean(v) <= tau.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  tau = math.inf if cfg.tau is None else cfg.tau
  outward = mask & (masked.masked(advantages, mask) * log_ratio > 0)
  eligible = mask if cfg.m2_scope == "all" else outward
  squares = jnp.where(eligible, jnp.square(log_ratio), jnp.inf)
  ascending = jnp.sort(squares.reshape(-1))
  rank = jnp.arange(1, ascending.size + 1)
  if cfg.m2_rule == "cap":
    threshold = _cap(ascending, rank, jnp.sum(eligible), tau)
    return jnp.broadcast_to(threshold, mask.shape)
  means = jnp.cumsum(ascending) / rank
  is_inside = means <= tau if cfg.m2_scope == "away" else means < tau
  count = jnp.sum(is_inside & jnp.isfinite(ascending))
  smallest_dropped = jnp.append(ascending, jnp.inf)[count]
  retained_count = mask & (~eligible | (squares < smallest_dropped))
  return retained_count.astype(log_ratio.dtype)


def _cap(ascending, rank, count, tau: float):
  """Returns the largest of the `count` finite squares at which the capped mean is below tau."""
  finite = jnp.where(jnp.isfinite(ascending), ascending, 0.0)
  capped_sum = jnp.cumsum(finite) + finite * jnp.maximum(count - rank, 0)
  is_inside = (rank <= count) & (masked.safe_divide(capped_sum, count) < tau)
  largest = jnp.max(jnp.where(is_inside, finite, 0.0), initial=0.0)
  return jnp.where(masked.safe_divide(jnp.sum(finite), count) <= tau, jnp.inf, largest)


@register("m2po", M2po, anchor="behavior", prepare=m2_weights)
def m2po(log_probs, anchor_log_probs, advantages, mask, cfg, weights):
  """The ratio, without the tokens of the batch that have moved furthest from the anchor.

    drop    loss_t = -kept_t r_t A_t
    cap     loss_t = -min(r_t A_t, clip(r_t, low, high) A_t)
            low = min(e^-t, 1 - min_low), high = max(e^t, 1 + min_high), t^2 = `weights`

  Coefficient: r_t A_t on tokens within the threshold, 0 on the others and where |log r| >= 20. A
  token on the bound of `cap` keeps its gradient. The scope is read by `drop`, and by `cap` in its
  mean; a window never drops a token that moves back.

  Args:
    weights: [B, L], `m2_weights` of the full optimizer batch.

  Source: arXiv 2510.01161. `drop` with the scope `away` is Algorithm 1 of its ICLR version, read in
  transcriptions (second-hand, as is <=). `drop` with `all` is the rule of AReaL, which also drops
  tokens that move back. `cap` is the authors' released code; the floors are options there, 0.3 and
  0.5 by default of the function, and off in every script. tau is 0.04 in all three.
  """
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  ratio = jnp.exp(log_ratio)
  if cfg.m2_rule == "cap":
    is_removed, bound = _beyond_window(log_ratio, advantages, weights, cfg)
  else:
    is_removed, bound = weights == 0, jnp.zeros_like(ratio)
  no_gradient = is_removed | common.saturated(log_ratio)
  loss = common.gated_surrogate(ratio, jnp.where(is_removed, bound, ratio), no_gradient, log_probs,
                                advantages, mask)
  is_high, is_low = is_removed & (log_ratio > 0), is_removed & (log_ratio < 0)
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=no_gradient)


def _beyond_window(log_ratio, advantages, threshold, cfg):
  """Returns where a token is beyond the window on its advantage's side, and the ratio there."""
  width = jnp.sqrt(threshold)
  log_low, log_high = -width, width
  if cfg.min_low is not None:
    log_low = jnp.minimum(log_low, math.log1p(-cfg.min_low) if cfg.min_low < 1 else -math.inf)
  if cfg.min_high is not None:
    log_high = jnp.maximum(log_high, math.log1p(cfg.min_high))
  # Squares are compared, because the square root of a square may differ from it in the last bit.
  square = jnp.square(log_ratio)
  is_high = (advantages > 0) & (log_ratio > 0) & (square > threshold) & (log_ratio > log_high)
  is_low = (advantages < 0) & (log_ratio < 0) & (square > threshold) & (log_ratio < log_low)
  return is_high | is_low, jnp.exp(jnp.where(is_high, log_high, log_low))
