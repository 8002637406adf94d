"""Estimators that drop rows whose mean ratio has left a band, instead of weighing them."""

import dataclasses
import math

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "row filter"


@dataclasses.dataclass(frozen=True)
class GeoMask:
  """Hyperparameters of `geo_mask` and `seq_mis`."""

  row_low: float | None = option(
      0.99, "smallest geometric mean of a row's ratios that stays; none: open", low=0.0)
  row_high: float | None = option(
      1.01, "largest geometric mean of a row's ratios that stays; none: open", low=0.0)


@dataclasses.dataclass(frozen=True)
class MisPo(GeoMask):
  """Hyperparameters of `mis_po`."""

  token_low: float | None = option(0.125, "smallest ratio of a token that stays; none: open",
                                   low=0.0)
  token_high: float | None = option(8.0, "largest ratio of a token that stays; none: open", low=0.0)


@register("geo_mask", GeoMask, anchor="behavior")
def geo_mask(log_probs, anchor_log_probs, advantages, mask, cfg):
  """REINFORCE on the rows whose geometric mean of ratios s lies in a band.

    c_t     = A_t where row_low <= s <= row_high, else 0

  A row without policy tokens stays, and adds nothing. s is computed with the current policy, so
  more rows are dropped as the update proceeds; the rule `seq_mean_k1` of `correction.reject`
  compares the anchor.

  Source: prime-rl pull request 3384, second-hand. Its band is unconfirmed; 0.99 and 1.01 are from
  SkyRL's example, older prime-rl has 0.1 and 10.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  return _filtered(log_ratio, jnp.ones_like(log_ratio), _outside_row(log_ratio, mask, cfg),
                   log_probs, advantages, mask)


@register("seq_mis", GeoMask, anchor="behavior")
def seq_mis(log_probs, anchor_log_probs, advantages, mask, cfg):
  """`geo_mask` with the product W of the row's ratios as weight.

    c_t     = W A_t where row_low <= s <= row_high, else 0      (log W within +-20)

  With an open band it is `seq_is`.

  Source: as `geo_mask`.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  weight = jnp.broadcast_to(jnp.exp(common.row_log_ratio(log_ratio)), mask.shape)
  return _filtered(log_ratio, weight, _outside_row(log_ratio, mask, cfg), log_probs, advantages,
                   mask)


@register("mis_po", MisPo, anchor="behavior")
def mis_po(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Two filters and no weight: of rows, as `geo_mask`, and of tokens.

    c_t     = A_t where row_low <= s <= row_high and token_low <= r_t <= token_high, else 0

  Source: Step-3.5-Flash, as described in prime-rl pull request 3384 (second-hand). The bands are
  unconfirmed: the row's band is `geo_mask`'s, the token's band is from older prime-rl; third
  parties use 0.996 and 1.001 for rows.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  low, high = _log_band(cfg.token_low, cfg.token_high)
  outside = _outside_row(log_ratio, mask, cfg) | (log_ratio < low) | (log_ratio > high)
  return _filtered(log_ratio, jnp.ones_like(log_ratio), outside, log_probs, advantages, mask)


def _log_band(low: float | None, high: float | None) -> tuple[float, float]:
  """Returns the logs of two bounds of a ratio; None, and 0 below, leave a side open."""
  return math.log(low) if low else -math.inf, math.inf if high is None else (
      math.log(high) if high else -math.inf)


def _outside_row(log_ratio, mask, cfg):
  """Returns where the row's mean log-ratio is outside the band, [B, L]."""
  low, high = _log_band(cfg.row_low, cfg.row_high)
  mean = masked.row_mean(log_ratio, mask)
  outside = jnp.any(mask, -1, keepdims=True) & ((mean < low) | (mean > high))
  return jnp.broadcast_to(outside, mask.shape)


def _filtered(log_ratio, weight, outside, log_probs, advantages, mask):
  """Returns the loss with a constant weight, 0 where `outside`; clips are counted by log-ratio."""
  loss = common.score_function_surrogate(jnp.where(outside, 0.0, weight), log_probs, advantages,
                                         mask)
  is_high, is_low = outside & (log_ratio > 0), outside & (log_ratio < 0)
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=outside)
