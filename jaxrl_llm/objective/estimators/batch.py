"""Estimators for which a token's loss depends on the other tokens of the optimizer batch."""

import dataclasses

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "token ratio"  # of all estimators of this module


@dataclasses.dataclass(frozen=True)
class M2po:
  """Numbers of `m2po`."""

  tau: float | None = option(
      0.04, "bound on the mean squared log-ratio of the kept tokens, above 0; none: keeps all",
      low=1e-12)  # with 0 no token is kept, not even where the policy has not moved
  m2_scope: str = option(
      "all", "tokens that may be dropped; away: only those moving away from the anchor",
      choices=("all", "away"))


def m2_kept(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Returns which tokens M2PO keeps: as many of the smallest squared log-ratios as have mean < tau.

  Equal squares are kept or dropped together, so that the order of rows does not matter.

  Args:
    log_probs, anchor_log_probs, advantages, mask: [B, L] of the whole optimizer batch.
    cfg: `tau` (None: all are kept) and `m2_scope`. With `all`, every policy token counts in the
      mean and may be dropped. With `away`, only tokens whose log-ratio has the sign of the
      advantage do: the update moves them further from the anchor. The other tokens are kept.

  Returns:
    [B, L], 1 on kept policy tokens, else 0.

  Source: arXiv 2510.01161. `all` is AReaL's scope; `away` is the paper's, second-hand and
  unconfirmed.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  if cfg.tau is None:
    return mask.astype(log_ratio.dtype)
  moves_away = masked.masked(advantages, mask) * log_ratio > 0
  eligible = mask if cfg.m2_scope == "all" else mask & moves_away
  squares = jnp.where(eligible, jnp.square(log_ratio), jnp.inf)
  ascending = jnp.sort(squares.reshape(-1))
  means = jnp.cumsum(ascending) / jnp.arange(1, ascending.size + 1)
  count = jnp.sum(means < cfg.tau)
  smallest_dropped = jnp.append(ascending, jnp.inf)[count]
  kept = mask & (~eligible | (squares < smallest_dropped))
  return kept.astype(log_ratio.dtype)


@register("m2po", M2po, anchor="behavior", prepare=m2_kept)
def m2po(log_probs, anchor_log_probs, advantages, mask, cfg, weights=None):
  """The plain ratio, without the tokens of the batch that have the largest squared log-ratios.

    loss_t  = -kept_t r_t A_t        kept: mean of (log r_t)^2 over the kept tokens < tau, see
                                     `m2_kept`

  Coefficient: r_t A_t on kept tokens, 0 on dropped ones and where |log r| >= 20.

  Args:
    weights: [B, L] of 0 and 1, `m2_kept` of the whole optimizer batch. None: the other arrays are
      the whole batch.

  Source: arXiv 2510.01161; tau from AReaL's example configuration. Which tokens may be dropped is
  unconfirmed, hence `m2_scope`.
  """
  if weights is None:
    weights = m2_kept(log_probs, anchor_log_probs, advantages, mask, cfg)
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  ratio = jnp.exp(log_ratio)
  removed = weights == 0
  dropped = removed | (jnp.abs(log_ratio) >= common.LOG_RATIO_BOUND)
  loss = common.gated_surrogate(ratio, jnp.where(removed, 0.0, ratio), dropped, log_probs,
                                advantages, mask)
  above, below = removed & (log_ratio > 0), removed & (log_ratio < 0)
  return common.output(loss, common.clip_counts(mask, high=above, low=below, dropped=dropped))
