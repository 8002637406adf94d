"""Corrects the sampler / trainer mismatch: importance weights, rejection, and the sequence mask.

The weights are anchor / behavior, truncated or rejected. All results are constants that multiply a
token's loss. A token with weight 0 still counts in every denominator, prefix and position, so
dropping one token does not amplify the others.
"""

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.config import ConfigError, CorrectionConfig
from jaxrl_llm.fields import did_you_mean
from jaxrl_llm.objective.estimators.common import (
  binary_divergence,
  masked_log_ratio,
  row_log_ratio,
)
from jaxrl_llm.ops import masked

LEVELS = ("none", "token", "sequence")
REDUCTIONS = ("token", "seq_sum", "seq_mean", "seq_max")
KPOP = "token_kpop"
RULES = (*(f"{reduction}_{statistic}" for reduction in REDUCTIONS
           for statistic in ("k1", "k2", "k3")), KPOP)
SMALLEST = 1e-8  # clamp of a probability in `token_kpop`, on both sides


def check(cfg: CorrectionConfig) -> CorrectionConfig:
  """Returns `cfg` if it can be computed and no part of it would be ignored.

  Raises:
    ConfigError: naming the key, its value, what is allowed, and a fix.
  """
  if cfg.level not in LEVELS:
    raise ConfigError(f"correction.level = {cfg.level!r}: allowed are {', '.join(LEVELS)}."
                      + did_you_mean(str(cfg.level), LEVELS))
  if cfg.level == "none" and cfg.low is not None:
    raise ConfigError(
        f"correction.low = {cfg.low} with correction.level = 'none': there is no weight to compare "
        "with it. Fix: correction.level=token (IcePop), or correction.low=none.")
  if cfg.level == "none" and cfg.batch_normalize:
    raise ConfigError(
        "correction.batch_normalize = True with correction.level = 'none': all weights are 1 "
        "already. Fix: correction.level=token or sequence, or correction.batch_normalize=False.")
  if cfg.low is not None and cfg.cap is not None and cfg.low > cfg.cap:
    raise ConfigError(
        f"correction.low = {cfg.low} exceeds correction.cap = {cfg.cap}: every weight would be 0. "
        "Fix: correction.low <= correction.cap.")
  for rule in cfg.reject:
    _check_rule(rule)
  return cfg


def _check_rule(rule) -> None:
  """Raises ConfigError for an entry of `correction.reject` that is not a rule."""
  prefix = f"correction.reject holds {rule!r}"
  if not isinstance(rule, (tuple, list)) or len(rule) != 3 or not isinstance(rule[0], str):
    raise ConfigError(
        f"{prefix}: a rule is (name, low, high), a bound being a number or None, and name one of "
        f"{', '.join(RULES)}. Fix: a rule such as ('token_k1', 0.5, 2.0).")
  name, low, high = rule
  if name not in RULES:
    raise ConfigError(f"{prefix}: allowed names are {', '.join(RULES)}.{did_you_mean(name, RULES)}")
  for bound in (low, high):
    if bound is not None and not _is_bound(bound):
      raise ConfigError(f"{prefix}: the bound {bound!r} is neither None nor a finite number >= 0.")
  if name.endswith("k1"):
    if low is None and high is None:
      raise ConfigError(
          f"{prefix}: it bounds nothing. Fix: give low, high or both, as ratios anchor / behavior.")
    if low is not None and high is not None and low > high:
      raise ConfigError(
          f"{prefix}: low exceeds high, so that it rejects everything. Fix: low <= high.")
  elif low is not None or high is None:
    raise ConfigError(f"{prefix}: {name} is never negative and bounded from above only. "
                      f"Fix: ({name!r}, None, high).")


def _is_bound(value) -> bool:
  """Returns whether a value is a finite number >= 0."""
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  return number and math.isfinite(value) and value >= 0


def correction_weights(anchor_log_probs: Float[Array, "B L"],
                       behavior_log_probs: Float[Array, "B L"], mask: Bool[Array, "B L"],
                       cfg: CorrectionConfig) -> tuple[Float[Array, "B L"], dict]:
  """Returns the weight that multiplies each token's loss, and its metrics.

    level     weight
    none      1
    token     min(k_t, cap)           with k_t = anchor(a_t) / behavior(a_t)
    sequence  min(prod_t k_t, cap)    on every token of the row; the log sum is clipped to +-20

  With `low`, a weight outside [low, cap] becomes 0 instead (IcePop). `batch_normalize` then divides
  by the mean weight: over policy tokens (token), or over the rows that have any (sequence). Last,
  each rule of `reject` sets weights to 0. A rule (name, low, high) rejects whatever is outside
  [low, high]. With l_t = log k_t and T policy tokens, it compares

    name   token_*         seq_sum_*    seq_mean_*         seq_max_*
    k1     k_t             prod_t k_t   (prod_t k_t)^1/T   every k_t of the row
    k2     l_t^2 / 2       sum          mean               largest
    k3     k_t - 1 - l_t   sum          mean               largest

  token_kpop compares, for each token, the KL over two outcomes, this token or any other, of anchor
  and behavior: the larger of both directions, probabilities kept within [1e-8, 1 - 1e-8].

  `token_*` drops tokens, `seq_*` drops rows; `seq_max_k1` drops a row if any of its k_t is below
  low or above high. The bounds of k1 are ratios anchor / behavior, and either may be None; verl's
  `lower_upper` bounds the inverse. k2, k3 and kpop have an upper bound only. On tokens of the
  behavior policy, the mean of k3 estimates KL(behavior || anchor).

  Args:
    anchor_log_probs, behavior_log_probs: [B, L].
    mask: [B, L] bool; also False on dropped rows and on tokens outside a pruned vocabulary, so that
      neither enters a product or a mean.
    cfg: level, cap (None: unbounded), low, batch_normalize, reject.

  Returns:
    ([B, L] f32 or wider, without gradient, 1 where mask is False; metrics, each a Mean).
    `correction/weight` and `correction/weight_squared` are the means of w and w^2 over policy
    tokens, w being the final weights: mean(w)^2 / mean(w^2) is the effective share of the sample.
    `correction/truncated`: share of tokens above cap, or outside [low, cap].
    `correction/rejected`: share of tokens dropped by a rule.
    `correction/rejected_rows`: share of rows whose policy tokens all have weight 0.

  Raises:
    ConfigError: see `check`.

  Source: Token-TIS, Seq-TIS, MIS and geometric rejection: verl's rollout correction
  (docs/algo/rollout_corr.md); IcePop: arXiv 2510.18855; TRM: arXiv 2512.23075; KPop: Ant Group's
  note of 2026-05-26, as in AReaL, whose example has the bound 2 (unconfirmed).
  """
  check(cfg)
  log_ratio = lax.stop_gradient(masked_log_ratio(anchor_log_probs, behavior_log_probs, mask))
  raw = _raw_weights(log_ratio, mask, cfg.level)
  cap = jnp.inf if cfg.cap is None or cfg.level == "none" else cfg.cap
  outside = (raw > cap) if cfg.low is None else (raw > cap) | (raw < cfg.low)
  weights = jnp.minimum(raw, cap) if cfg.low is None else jnp.where(outside, 0.0, raw)
  if cfg.batch_normalize:
    weights = masked.safe_divide(weights, _mean_weight(weights, mask, cfg.level))
  reject_mask = jnp.zeros_like(mask)
  for rule in cfg.reject:
    if rule[0] == KPOP:
      reject_mask |= mask & (_binary(anchor_log_probs, behavior_log_probs, mask) > rule[2])
    else:
      reject_mask |= _rejected(log_ratio, mask, *rule)
  weights = jnp.where(mask, jnp.where(reject_mask, 0.0, weights), 1.0)
  rows = jnp.any(mask, -1)
  empty_rows = rows & ~jnp.any(mask & (weights > 0), -1)
  metrics = {
      "correction/weight": masked.mean(weights, mask),
      "correction/weight_squared": masked.mean(jnp.square(weights), mask),
      "correction/truncated": masked.mean(outside.astype(weights.dtype), mask),
      "correction/rejected": masked.mean(reject_mask.astype(weights.dtype), mask),
      "correction/rejected_rows": masked.mean(empty_rows.astype(weights.dtype), rows),
  }
  return lax.stop_gradient(weights), metrics


def _raw_weights(log_ratio, mask, level: str):
  """Returns the weights before truncation, [B, L]."""
  if level == "none":
    return jnp.ones_like(log_ratio)
  if level == "token":
    return jnp.exp(log_ratio)
  return jnp.exp(jnp.broadcast_to(row_log_ratio(log_ratio), mask.shape))


def _mean_weight(weights, mask, level: str):
  """Returns the mean over policy tokens; with level `sequence`, over the rows that have any."""
  if level == "sequence":
    weights, mask = weights[:, :1], jnp.any(mask, -1, keepdims=True)
  mean = masked.mean(weights, mask)
  return masked.safe_divide(mean.total, mean.count)


def _binary(anchor_log_probs, behavior_log_probs, mask):
  """Returns the statistic of `token_kpop`, [B, L] without gradient."""
  pair = (lax.stop_gradient(masked.masked(x, mask)) for x in (anchor_log_probs, behavior_log_probs))
  return binary_divergence(*pair, SMALLEST)


def _rejected(log_ratio, mask, name: str, low, high):
  """Returns where the rule's statistic is outside its bounds, [B, L] or [B, 1].

  k1 compares log-ratios with the logs of its bounds.
  """
  reduction, statistic = name.rsplit("_", 1)
  value = {
      "k1": log_ratio,
      "k2": jnp.square(log_ratio) / 2,
      "k3": jnp.expm1(log_ratio) - log_ratio,
  }[statistic]
  if statistic == "k1":
    low, high = _log_bound(low), _log_bound(high)
  if reduction == "seq_sum":
    value = row_log_ratio(value) if statistic == "k1" else jnp.sum(value, -1, keepdims=True)
  elif reduction == "seq_mean":
    value = masked.row_mean(value, mask)
  is_low = value < (-jnp.inf if low is None else low)
  outside = mask & (is_low | (value > (jnp.inf if high is None else high)))
  return jnp.any(outside, -1, keepdims=True) if reduction == "seq_max" else outside


def _log_bound(ratio: float | None) -> float | None:
  """Returns the log of a bound; -inf for 0, and None for an open side."""
  if ratio is None:
    return None
  return math.log(ratio) if ratio > 0 else -math.inf


def sequence_mask(log_probs: Float[Array, "B L"], anchor_log_probs: Float[Array, "B L"],
                  advantages: Float[Array, "B L"], mask: Bool[Array, "B L"], cfg: CorrectionConfig
                  ) -> Float[Array, "B L"]:
  """Returns a gate for any estimator: 0 on wrong rows that have become unlikely, 1 elsewhere.

    0 where  mean_t A_t < 0  and  mean_t log(anchor(a_t) / current(a_t)) > sequence_delta

  The means are over the row's policy tokens.

  Args:
    cfg: reads `sequence_delta`, nats per token; None: no row is dropped.

  Returns:
    [B, L] f32 or wider, without gradient.

  Source: DeepSeek-V3.2, arXiv 2512.02556; slime's OPSM is the same rule.
  """
  log_ratio = lax.stop_gradient(masked_log_ratio(log_probs, anchor_log_probs, mask))
  gate = jnp.ones_like(log_ratio)
  if cfg.sequence_delta is None:
    return gate
  negative_rows = masked.row_mean(advantages, mask) < 0
  drop_mask = negative_rows & (masked.row_mean(-log_ratio, mask) > cfg.sequence_delta)
  return lax.stop_gradient(jnp.where(drop_mask, 0.0, gate))
