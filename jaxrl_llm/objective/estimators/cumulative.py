"""Estimators whose ratio depends on the preceding tokens."""

import dataclasses

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import prefix

FAMILY = "prefix ratio"  # of all estimators of this module


@dataclasses.dataclass(frozen=True)
class Ctpo:
  """Hyperparameters of `ctpo`."""

  log_low: float | None = option(0.025, "lower end of the log window, -log_low t^power; none: open",
                                 low=0.0)
  log_high: float | None = option(0.05, "upper end of the log window, log_high t^power; none: open",
                                  low=0.0)
  log_dual: float | None = option(
      0.05, "upper end for negative advantages, log_dual t^power; none: open", low=0.0)
  power: float = option(0.5, "growth of the window with the position t", low=-4.0, high=4.0)


@register("ctpo", Ctpo)
def ctpo(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Cumulative token ratio inside a log-space window that grows with the position.

    L_t     = sum_{i<=t} log r_i
    window  : -log_low t^power <= L_t <= log_high t^power
    loss_t  = -min(exp(L_t) A_t, exp(clip(L_t, window)) A_t)
    A_t < 0 : at most -exp(log_dual t^power) A_t

  The sum runs over policy tokens, and t counts them from 1, across turns.

  Coefficient: exp(L_t) A_t; 0 where (A > 0 and above), (A < 0 and below), (A < 0 and
  L_t > log_dual t^power), or L_t > 10. With log_dual = log_high, as shipped, the window is
  two-sided for negative advantages. power = 0 gives a window that does not depend on the position.

  Deviations: the sum is a constant and only the current token's log-prob carries gradient, as in
  the public code. The dual bound is in that code, not in the reported formula; `log_dual = none`
  removes it.

  Source: arXiv 2605.07331; the constants are those of the authors' Qwen3-4B run.
  """
  return _windowed(log_probs, anchor_log_probs, advantages, mask, cfg, (1.0, cfg.power))


@dataclasses.dataclass(frozen=True)
class CtpoGeomean(Ctpo):
  """Hyperparameters of `ctpo_geomean`: as for `ctpo`, with a window that narrows."""

  power: float = option(-0.5, "growth of the window with the position t", low=-4.0, high=4.0)


@register("ctpo_geomean", CtpoGeomean)
def ctpo_geomean(log_probs, anchor_log_probs, advantages, mask, cfg):
  """`ctpo` with the geometric mean of the prefix, exp(L_t / t), as weight and in the window.

  power = -0.5 because the deviation of a mean of log-ratios falls as 1 / sqrt(t). PNPO has the same
  weight.

  Source: the public code of arXiv 2605.07331, which has `ctpo`'s bounds in this mode; its script
  keeps power 0.5, and advises -0.5 in a comment. PNPO: arXiv 2608.01418.
  """
  return _windowed(log_probs, anchor_log_probs, advantages, mask, cfg, (0.0, cfg.power))


@dataclasses.dataclass(frozen=True)
class PrefixPower:
  """Hyperparameters of `prefix_power`."""

  alpha: float = option(0.5, "0: geometric mean of the prefix; 1: its product", low=0.0, high=1.0)
  log_low: float | None = option(
      0.025, "lower end of the log window, -log_low t^(alpha - 1/2); none: open", low=0.0)
  log_high: float | None = option(
      0.05, "upper end of the log window, log_high t^(alpha - 1/2); none: open", low=0.0)
  log_dual: float | None = option(
      0.05, "upper end for negative advantages, log_dual t^(alpha - 1/2); none: open", low=0.0)


@register("prefix_power", PrefixPower)
def prefix_power(log_probs, anchor_log_probs, advantages, mask, cfg):
  """The family between `ctpo_geomean` (alpha 0) and `ctpo` (alpha 1).

    log w_t = L_t / t^(1 - alpha)
    window  : -log_low t^p <= log w_t <= log_high t^p,   p = alpha - 1/2

  Coefficient: w_t A_t, and 0 where the coefficient of `ctpo` is 0. With independent log-ratios of
  standard deviation sigma, log w_t has standard deviation sigma t^(alpha - 1/2). At alpha = 1/2 it
  does not depend on the position, and neither does the window. Bias falls and variance rises with
  alpha.

  Source: own derivation; the values in between are unpublished. The bounds are `ctpo`'s.
  """
  exponents = cfg.alpha, cfg.alpha - 0.5
  return _windowed(log_probs, anchor_log_probs, advantages, mask, cfg, exponents)


def _windowed(log_probs, anchor_log_probs, advantages, mask, cfg, exponents: tuple[float, float]):
  """Returns the loss of `ctpo` on L_t / t^(1 - alpha), with a window that grows as t^power;
  `exponents` are (alpha, power).
  """
  alpha, power = exponents
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  log_weight = prefix.cumulative_log_ratio(log_ratio, mask)
  position = jnp.maximum(prefix.token_index(mask), 1).astype(log_weight.dtype)
  if alpha < 1:
    log_weight = log_weight / (position if alpha == 0 else position ** (1 - alpha))
  scale = position ** power
  low = -jnp.inf if cfg.log_low is None else -cfg.log_low * scale
  high = jnp.inf if cfg.log_high is None else cfg.log_high * scale
  is_high, is_low, negative = log_weight > high, log_weight < low, advantages < 0
  dual_bound = jnp.inf if cfg.log_dual is None else cfg.log_dual * scale
  dual = negative & (log_weight > dual_bound)
  overflow = log_weight > common.LOG_WEIGHT_BOUND
  no_gradient = ((advantages > 0) & is_high) | (negative & is_low) | dual | overflow
  limit = jnp.where(advantages > 0, jnp.minimum(log_weight, high), jnp.maximum(log_weight, low))
  limit = jnp.where(negative, jnp.minimum(limit, dual_bound), limit)
  weight = jnp.exp(jnp.minimum(log_weight, common.LOG_WEIGHT_BOUND))
  bound = jnp.exp(jnp.minimum(limit, common.LOG_WEIGHT_BOUND))
  loss = common.gated_surrogate(weight, bound, no_gradient, log_probs, advantages, mask)
  return common.clipped(loss, mask, high=is_high, low=is_low, dual=dual, dropped=no_gradient)


@dataclasses.dataclass(frozen=True)
class MinPro:
  """Hyperparameters of `minpro`."""

  clip_low: float | None = option(None, common.CLIP_LOW, low=0.0)
  clip_high: float | None = option(None, common.CLIP_HIGH, low=0.0)
  cap_at_one: bool = option(False, "keeps the prefix minimum from exceeding a ratio of 1")


@register("minpro", MinPro, anchor="behavior")
def minpro(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Token ratio damped by the smallest ratio among the preceding policy tokens.

    log w_t = min_{i<t} log r_i + log r_t          (the minimum is 0 for the first token)
    loss_t  = -stop_gradient(clip(w_t, 1 - clip_low, 1 + clip_high)) A_t log pi(a_t)

  Coefficient: clip(w_t) A_t, never 0. `cap_at_one` keeps the minimum from exceeding a ratio of 1.

  Source: arXiv 2601.22718; its clip bounds are unconfirmed, hence options, and so is the empty
  prefix. The preset has the upper bound of `cispo`.
  """
  low, high = common.window(cfg.clip_low, cfg.clip_high)
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  smallest = prefix.prefix_min(log_ratio, mask)
  smallest = jnp.minimum(smallest, 0.0) if cfg.cap_at_one else smallest
  weight = jnp.exp(jnp.minimum(smallest + log_ratio, common.LOG_RATIO_BOUND))
  loss = common.score_function_surrogate(jnp.clip(weight, low, high), log_probs, advantages, mask)
  return common.clipped(loss, mask, high=weight > high, low=weight < low)
