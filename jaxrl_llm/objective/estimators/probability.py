"""Estimators that compare probabilities instead of ratios, on both sides of the anchor."""

import dataclasses

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "token ratio, probability bound"

# Clamp of a probability before its logarithm, on both sides.
SMALLEST = 1e-6


@dataclasses.dataclass(frozen=True)
class Ipo:
  """Hyperparameters of `ipo`."""

  delta: float | None = option(0.1, "change of the probability beyond which a token is dropped; "
                                    "none: never", low=0.0)
  kl_tau: float = option(1e-3, "weight of the squared log-ratio", low=0.0)


@register("ipo", Ipo, anchor="behavior", regularized=True)
def ipo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Drops a token whose probability has moved far, whatever the sign of its advantage.

    keep    = |pi - mu| <= delta
    loss_t  = -keep r_t A_t + kl_tau l_t^2         l_t = log r_t, also on dropped tokens

  Coefficient: keep r_t A_t - 2 kl_tau l_t, which does not vanish with the advantage; 0 where
  |l| >= 20. The ratio has no other bound. Another method has the same initials.

  Source: prime-rl, `ipo_loss_fn` (trainer/rl/loss.py); its further weight of the advantage is 1.
  """
  shift = _probability(log_probs, mask) - _probability(anchor_log_probs, mask)
  beyond = jnp.zeros_like(mask) if cfg.delta is None else jnp.abs(shift) > cfg.delta
  return _both_sides(beyond, log_probs, anchor_log_probs, advantages, mask, cfg)


@dataclasses.dataclass(frozen=True)
class Kpop:
  """Hyperparameters of `kpop`."""

  phi: float | None = option(0.1, "divergence, nats, beyond which a token is dropped; none: never",
                             low=0.0)
  kl_tau: float = option(1e-3, "weight of the squared log-ratio", low=0.0)


@register("kpop", Kpop, anchor="behavior", regularized=True)
def kpop(log_probs, anchor_log_probs, advantages, mask, cfg):
  """`ipo` with a mask by the KL over two outcomes, this token or any other, in both directions.

    D(p, q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))
    keep    = max(D(pi, mu), D(mu, pi)) <= phi

  Probabilities are clamped to [1e-6, 1 - 1e-6]. The mask is tight for confident tokens and, in
  ratio, lenient for rare ones: near the anchor it is `ipo` with delta = sqrt(2 phi p (1 - p)).

  Coefficient: as `ipo`.

  Source: Ant Group's note of 2026-05-26, no arXiv id known; as a loss, prime-rl pull request 3283,
  second-hand. phi is unconfirmed: 0.1 there, 2.0 in AReaL's example of the correction.
  """
  beyond = jnp.zeros_like(mask)
  if cfg.phi is not None:
    policy = lax.stop_gradient(masked.masked(log_probs, mask))
    anchor = lax.stop_gradient(masked.masked(anchor_log_probs, mask))
    beyond = common.binary_divergence(policy, anchor, SMALLEST) > cfg.phi
  return _both_sides(beyond, log_probs, anchor_log_probs, advantages, mask, cfg)


def _both_sides(beyond, log_probs, anchor_log_probs, advantages, mask, cfg):
  """Returns the loss of `ipo`, without the ratio's term where `beyond`."""
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  ratio, flat = jnp.exp(log_ratio), common.saturated(log_ratio)
  advantages = masked.masked(advantages, mask)
  loss = -jnp.where(beyond, 0.0, ratio) * advantages + cfg.kl_tau * jnp.square(log_ratio)
  coefficient = jnp.where(beyond, 0.0, ratio) * advantages - 2 * cfg.kl_tau * log_ratio
  loss = common.with_coefficient(loss, jnp.where(flat, 0.0, coefficient), log_probs, mask)
  is_high, is_low = beyond & (log_ratio > 0), beyond & (log_ratio < 0)
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=beyond | flat)


@dataclasses.dataclass(frozen=True)
class Drpo:
  """Hyperparameters of `drpo`."""

  eps: float = option(12.5, "move at which the coefficient changes its sign", low=1e-6)
  weighted: bool = option(True, "True: the move is pi - mu (DRPO); False: it is r - 1 (SPO)")
  ratio_cap: float | None = option(None, "truncates the token ratio; none: unbounded", low=0.0)


@register("drpo", Drpo, anchor="behavior")
def drpo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """A quadratic penalty in place of a mask: the coefficient falls linearly, and then pulls back.

    loss_t  = -r_t A_t + |A_t| m_t (r_t - 1) / (2 eps)
    m_t     = pi - mu where `weighted` (DRPO), else r_t - 1 (SPO)

  Coefficient: r_t A_t (1 - sign(A_t) m_t / eps), 0 where |log r| >= 20. It is 0 at m = eps on the
  advantage's side, and reversed beyond. With SPO it grows as r^2; `ratio_cap` bounds r.

  Source: arXiv 2606.09821, read in UniRL's code, which quotes 12.5 as the paper's. Unconfirmed:
  |pi - mu| never reaches 12.5, so DRPO as coded stays within 8 % of the plain ratio; 0.15 to 0.2,
  the size of DPPO's thresholds, gives the method that is described.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  ratio = jnp.exp(log_ratio)
  capped_ratio = jnp.minimum(ratio, jnp.inf if cfg.ratio_cap is None else cfg.ratio_cap)
  shift = _probability(log_probs, mask) - _probability(anchor_log_probs, mask)
  shift = shift if cfg.weighted else capped_ratio - 1
  advantages = masked.masked(advantages, mask)
  penalty = jnp.abs(advantages) * shift / cfg.eps
  flat = common.saturated(log_ratio)
  loss = -capped_ratio * advantages + penalty * (capped_ratio - 1) / 2
  coefficient = jnp.where(flat, 0.0, capped_ratio * (advantages - penalty))
  loss = common.with_coefficient(loss, coefficient, log_probs, mask)
  is_high, is_low = shift > cfg.eps, shift < -cfg.eps
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=flat)


def _probability(log_probs, mask):
  """Returns exp(log_probs) without gradient; 1 where mask is False."""
  return jnp.exp(lax.stop_gradient(masked.masked(log_probs, mask)))
