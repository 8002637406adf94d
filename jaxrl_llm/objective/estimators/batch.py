"""Estimators for which a token's loss depends on the other tokens of the optimizer batch."""

import dataclasses

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked


@dataclasses.dataclass(frozen=True)
class M2po:
  """Numbers of `m2po`."""

  tau: float | None = option(
      0.04, "bound on the mean squared log-ratio of the kept tokens; none: keeps all", low=0.0)
  m2_scope: str = option(
      "all", "tokens that may be dropped; away: only those moving away from the anchor",
      choices=("all", "away"))


def m2_kept(log_probs, anchor_log_probs, advantages, mask, cfg):
  """The tokens that M2PO keeps: those with the smallest squared log-ratios, as many as have a mean
  below tau.

  Equal squares are kept or dropped together, so that the order of rows does not matter.

  Args:
    log_probs, anchor_log_probs, advantages, mask: [B, L] of the whole optimizer batch.
    cfg: `tau` (None: all are kept) and `m2_scope`. `all`: every policy token may be dropped and
      counts in the mean; `away`: only those whose log-ratio has the sign of the advantage, so that
      the update moves them on from the anchor, the others being kept.

  Returns:
    [B, L], 1 on kept policy tokens, else 0.

  Source: arXiv 2510.01161; `all` is AReaL's, `away` the paper's by report (unconfirmed); methods
  E13.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  if cfg.tau is None:
    return mask.astype(log_ratio.dtype)
  eligible = mask if cfg.m2_scope == "all" else mask & (masked.masked(advantages, mask) *
                                                        log_ratio > 0)
  squares = jnp.where(eligible, jnp.square(log_ratio), jnp.inf)
  ascending = jnp.sort(squares.reshape(-1))
  means = jnp.cumsum(ascending) / jnp.arange(1, ascending.size + 1)
  count = jnp.sum(means < cfg.tau)
  smallest_dropped = jnp.append(ascending, jnp.inf)[count]
  kept = mask & (~eligible | (squares < smallest_dropped))
  return kept.astype(log_ratio.dtype)


@register("m2po", M2po, anchor="behavior", prepare=m2_kept)
def m2po(log_probs, anchor_log_probs, advantages, mask, cfg, weights=None):
  """The plain ratio, on the tokens left after the largest squared log-ratios of the batch were
  removed.

    loss_t  = -kept_t r_t A_t        kept: mean of (log r_t)^2 over the kept tokens < tau; see `m2_kept`

  Coefficient: r_t A_t on kept tokens, 0 on dropped ones and where |log r| >= 20.

  Args:
    weights: [B, L] of 0 and 1 from `m2_kept` on the whole optimizer batch, or None where these
      arrays are it.

  Source: arXiv 2510.01161, tau from AReaL's example; which tokens may be dropped is unconfirmed,
  hence `m2_scope`; methods E13.
  """
  if weights is None:
    weights = m2_kept(log_probs, anchor_log_probs, advantages, mask, cfg)
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  ratio = jnp.exp(log_ratio)
  removed = weights == 0
  dropped = removed | (jnp.abs(log_ratio) >= common.LOG_RATIO_BOUND)
  loss = common.gated_surrogate(ratio, jnp.where(removed, 0.0, ratio), dropped, log_probs,
                                advantages, mask)
  return common.output(
      loss,
      common.clip_counts(mask, high=removed & (log_ratio > 0), low=removed & (log_ratio < 0),
                         dropped=dropped))
