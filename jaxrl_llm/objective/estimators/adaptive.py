"""Estimators whose bounds or choice of tokens follow from the full optimizer batch."""

import dataclasses
import math

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked, prefix

FAMILY = "token ratio, batch statistic"


@dataclasses.dataclass(frozen=True)
class Bapo:
  """Hyperparameters of `bapo`. Bounds are ratios."""

  low_start: float = option(0.6, "lower bound of the ratio at the start", low=0.0, high=1.0)
  low_max: float = option(0.9, "largest lower bound", low=0.0, high=1.0)
  low_step: float = option(0.05, "step of the lower bound", low=1e-3)
  high_start: float = option(1.2, "upper bound of the ratio at the start", low=1.0)
  high_max: float = option(3.0, "largest upper bound", low=1.0)
  high_step: float = option(0.05, "step of the upper bound", low=1e-3)
  target: float = option(1.0, "wanted sum of positive contributions divided by that of negative "
                              "ones", low=0.0)
  contribution: str = option(
      "surrogate", "surrogate: clipped surrogates of all tokens; live: of those with a gradient",
      choices=("surrogate", "live"))
  dual_clip: float | None = option(3.0, common.DUAL_CLIP, low=1.0)


def _ladder(start: float, end: float, step: float) -> list[float]:
  """Returns start, start + step, ... and last `end`; only `start` where end is not above it."""
  count = max(0, math.ceil((end - start) / step - 1e-9))
  return [min(start + i * step, end) if i else start for i in range(count + 1)]


def bapo_bounds(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Returns the bound of each token's ratio, [B, L]: the upper one where A >= 0, else the lower.

  With S = positive contributions / negative ones, the lower bound rises in its steps until
  S >= target, and then the upper bound does. Without a negative token S is infinite.
  """
  ratio = jnp.exp(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  advantages = masked.masked(advantages, mask)
  lows = jnp.asarray(_ladder(cfg.low_start, cfg.low_max, cfg.low_step), ratio.dtype)
  highs = jnp.asarray(_ladder(cfg.high_start, cfg.high_max, cfg.high_step), ratio.dtype)
  live = cfg.contribution == "live"

  def positive(high):
    value = jnp.where(ratio <= high, ratio, 0.0) if live else jnp.minimum(ratio, high)
    return jnp.sum(jnp.where(advantages > 0, advantages * value, 0.0))

  def negative(low):
    value = jnp.where(ratio >= low, ratio, 0.0) if live else jnp.maximum(ratio, low)
    return jnp.sum(jnp.where(advantages < 0, -advantages * value, 0.0))

  wins, losses = lax.map(positive, highs), lax.map(negative, lows)
  low = lows[_first(wins[0] >= cfg.target * losses)]
  high = highs[_first(wins >= cfg.target * negative(low))]
  return jnp.where(advantages < 0, low, high)


def _first(hits):
  """Returns the first place where `reached`, the last place where none is."""
  return jnp.where(jnp.any(hits), jnp.argmax(hits), hits.size - 1)


@register("bapo", Bapo, prepare=bapo_bounds)
def bapo(log_probs, anchor_log_probs, advantages, mask, cfg, weights):
  """`ppo` whose two bounds are chosen for each optimizer batch, see `bapo_bounds`.

    loss_t  = -min(r_t A_t, clip(r_t, low, high) A_t);  at most -dual_clip A_t where A_t < 0

  Coefficient: as `ppo`. With target 0 the bounds stay at the start.

  Args:
    weights: [B, L], `bapo_bounds` of the full optimizer batch.

  Source: arXiv 2510.18927. Bounds of its README; target 1 of its config file, which compares the
  ratio of the sums, where the README means the share 0.5. By its code the contributions are
  clipped surrogates: a higher lower bound then makes the negative side larger, so only the upper
  bound can reach the target. `live` is what was meant (own derivation). The order of the two loops
  in the paper is unconfirmed.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  ratio, negative = jnp.exp(log_ratio), advantages < 0
  is_high, is_low = (advantages > 0) & (ratio > weights), negative & (ratio < weights)
  dual = jnp.zeros_like(mask) if cfg.dual_clip is None else negative & (ratio > cfg.dual_clip)
  no_gradient = is_high | is_low | dual | common.saturated(log_ratio)
  bound = jnp.where(is_high | is_low, weights, ratio)
  bound = jnp.where(dual, cfg.dual_clip or 0.0, bound)
  loss = common.gated_surrogate(ratio, bound, no_gradient, log_probs, advantages, mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dual=dual, dropped=no_gradient)


def covariance(log_probs, advantages, mask):
  """Returns (A_t - mean A) (log pi_t - mean log pi) over the batch's policy tokens; 0 elsewhere."""
  return _centred(advantages, mask) * _centred(log_probs, mask)


def _centred(values, mask):
  values, count = masked.masked(values, mask), jnp.sum(mask)
  return masked.masked(values - masked.safe_divide(jnp.sum(values), count), mask)


def _number_of(share: float, mask):
  """Returns max(1, the integer part of share times the number of policy tokens)."""
  # 1e-4 keeps a product such as 2e-4 * 5000 from falling below an integer in f32.
  return jnp.maximum(jnp.floor(share * jnp.sum(mask) + 1e-4).astype(jnp.int32), 1)


@dataclasses.dataclass(frozen=True)
class ClipCov:
  """Hyperparameters of `clip_cov`."""

  share: float = option(2e-4, "share of the batch's policy tokens that is dropped", low=0.0,
                        high=1.0)
  cov_low: float = option(1.0, "tokens of covariance above this may be dropped")
  cov_high: float = option(5.0, "tokens of covariance below this may be dropped")
  clip_low: float | None = option(1.0, common.CLIP_LOW, low=0.0)
  clip_high: float | None = option(1.0, common.CLIP_HIGH, low=0.0)


def _clipped(ratio, advantages, cfg):
  """Returns where `ppo` clips a token."""
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  return (advantages > 0) & (ratio > high), (advantages < 0) & (ratio < low)


def clip_cov_kept(log_probs, anchor_log_probs, advantages, mask, cfg, row_id):
  """Returns 0 on the tokens that `clip_cov` drops, 1 elsewhere, [B, L].

  Candidates have cov_low < covariance < cov_high and are not clipped. max(1, share N) of them go,
  N being the number of policy tokens: the tokens with the smallest `draws`.
  """
  ratio = jnp.exp(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  is_high, is_low = _clipped(ratio, advantages, cfg)
  value = covariance(log_probs, advantages, mask)
  candidate = mask & (value > cfg.cov_low) & (value < cfg.cov_high) & ~is_high & ~is_low
  order = jnp.where(candidate, draws(row_id, mask), jnp.uint32(2**32 - 1))
  last = jnp.minimum(_number_of(cfg.share, mask), jnp.sum(candidate)) - 1
  threshold = jnp.sort(order.reshape(-1))[jnp.maximum(last, 0)]
  return jnp.where(candidate & (order <= threshold), 0.0, 1.0).astype(ratio.dtype)


def draws(row_id, mask):
  """Returns a random number for each policy token, [B, L] uint32.

  It depends on the row's id and the token's place among the row's policy tokens only, so it is the
  same on every device and for every order of rows and padding.

  Source: the mixing steps of MurmurHash3.
  """
  words = row_id.astype(jnp.uint32)[:, None] * jnp.uint32(0x9E3779B9)
  words = _murmur_mix(words + jnp.uint32(0x85EBCA6B)) ^ prefix.token_index(mask).astype(jnp.uint32)
  return _murmur_mix(words * jnp.uint32(0xC2B2AE35))


def _murmur_mix(words):
  words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
  words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
  return words ^ (words >> 16)


def clip_cov_on_policy(log_probs, advantages, mask, cfg, weights):
  """Returns the coefficient of `clip_cov` where the policy is the anchor."""
  return masked.masked(advantages, mask) * weights


@register("clip_cov", ClipCov, prepare=clip_cov_kept, columns={"row_id"},
          on_policy=clip_cov_on_policy)
def clip_cov(log_probs, anchor_log_probs, advantages, mask, cfg, row_id, weights):
  """`ppo` without some tokens, chosen at random among the tokens that lower the entropy most.

    v_t     = (A_t - mean A) (log pi_t - mean log pi)
    loss_t  = 0 on chosen tokens, else as in `ppo`

  Coefficient: 0 on chosen tokens, also on-policy; elsewhere as in `ppo`.

  Args:
    row_id: [B], seeds the choice; the same row and token have the same random number in every
      batch.
    weights: [B, L], `clip_cov_kept` of the full optimizer batch.

  Source: arXiv 2505.22617; the hyperparameters are from the authors' scripts, whose window is [0,
  2].
  """
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  ratio = jnp.exp(log_ratio)
  is_high, is_low = _clipped(ratio, advantages, cfg)
  cov_mask = weights == 0
  no_gradient = is_high | is_low | cov_mask | common.saturated(log_ratio)
  bound = jnp.where(is_high | is_low, jnp.clip(ratio, low, high), ratio)
  loss = common.gated_surrogate(ratio, jnp.where(cov_mask, 0.0, bound), no_gradient, log_probs,
                                advantages, mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dropped=no_gradient)


@dataclasses.dataclass(frozen=True)
class KlCov:
  """Hyperparameters of `kl_cov`."""

  share: float = option(2e-3, "share of the batch's policy tokens that is pulled back", low=0.0,
                        high=1.0)
  coef: float = option(1.0, "weight of the pull", low=0.0)


def kl_cov_pulled(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Returns 1 on the max(1, share N) policy tokens of largest covariance, else 0, [B, L].

  Equal covariances go together, so that the order of rows does not matter. A batch whose
  covariances are all equal, as with equal rewards, has none.
  """
  value = covariance(log_probs, advantages, mask)
  ranking = jnp.sort(jnp.where(mask, value, -jnp.inf).reshape(-1), descending=True)
  last = jnp.clip(_number_of(cfg.share, mask), 1, jnp.maximum(jnp.sum(mask), 1)) - 1
  differs = jnp.max(ranking) > jnp.min(jnp.where(mask, value, jnp.inf))
  return (mask & (value >= ranking[last]) & differs).astype(value.dtype)


@register("kl_cov", KlCov, regularized=True, prepare=kl_cov_pulled)
def kl_cov(log_probs, anchor_log_probs, advantages, mask, cfg, weights):
  """The plain ratio, with a pull to the anchor on the tokens that lower the entropy most.

    loss_t  = -r_t A_t + coef |log r_t| on pulled tokens, see `kl_cov_pulled`; no clip

  Coefficient: r_t A_t - coef sign(log r_t) on pulled tokens, r_t A_t elsewhere; 0 where
  |log r| >= 20. In the first update of a batch log r is 0, and so is the pull.

  Args:
    weights: [B, L], `kl_cov_pulled` of the full optimizer batch.

  Source: arXiv 2505.22617; share and coefficient are from the authors' 7B script (2e-4 in the 32B
  script). verl's config class holds a coefficient of 0.1.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  ratio, flat = jnp.exp(log_ratio), common.saturated(log_ratio)
  advantages = masked.masked(advantages, mask)
  loss = -ratio * advantages + cfg.coef * weights * jnp.abs(log_ratio)
  coefficient = ratio * advantages - cfg.coef * weights * jnp.sign(log_ratio)
  loss = common.with_coefficient(loss, jnp.where(flat, 0.0, coefficient), log_probs, mask)
  return common.clipped(loss, mask, dropped=flat)
