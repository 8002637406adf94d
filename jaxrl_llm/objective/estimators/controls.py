"""REINFORCE with a mask, a weight or a gate: what is left of PPO without its ratio."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "no ratio"


@dataclasses.dataclass(frozen=True)
class Rec:
  """Hyperparameters of `rec`."""

  clip: str = option("none", "which tokens stay, see objective/README.md",
                     choices=("none", "two_side", "one_side", "ring", "one_side_row"))
  weight: str = option("none", "what multiplies the advantage, see objective/README.md",
                       choices=("none", "ratio", "clipped_ratio", "row_ratio"))
  k2: float = option(0.0, "weight of the squared log-ratio", low=0.0)
  clip_low: float = option(0.2, "the window begins at 1 - clip_low", low=0.0, high=1.0)
  clip_high: float = option(0.2, "the window ends at 1 + clip_high", low=0.0)
  ring_low: float = option(0.6, "the ring begins again below 1 - ring_low", low=0.0, high=1.0)
  ring_high: float = option(2.0, "the ring begins again above 1 + ring_high", low=0.0)


@register("rec", Rec, anchor="behavior", regularized=True)
def rec(log_probs, anchor_log_probs, advantages, mask, cfg):
  """REINFORCE with a mask of the ratio, a weight, and a pull: which part of PPO helps off-policy?

    loss_t  = -keep w_t A_t log pi(a_t) + k2 l_t^2             l_t = log r_t

    clip          keep
    none          all tokens
    two_side      1 - clip_low <= r <= 1 + clip_high
    one_side      A >= 0 and r <= 1 + clip_high,  or A <= 0 and r >= 1 - clip_low
    ring          two_side,  or A >= 0 and r <= 1 - ring_low,  or A <= 0 and r >= 1 + ring_high
    one_side_row  one_side on the geometric mean of the row's ratios

    weight        w: 1, r, clip(r, 1 - ring_low, 1 + ring_high), or the row's geometric mean

  Coefficient: keep w_t A_t - 2 k2 l_t; where |l| >= 20, keep w_t A_t. `one_side` with the weight
  `ratio` has the gradient of `ppo`; `none` with k2 = beta / 2 is `dro`.

  Source: arXiv 2509.24203, from Trinity-RFT's code, whose k2 absorbs a factor 1/2. Its further
  weight exp(A / temperature) and its forward KL are left out.
  """
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  row = jnp.minimum(masked.row_mean(log_ratio, mask), common.LOG_WEIGHT_BOUND)
  ratio = jnp.exp(log_ratio)
  low, high = 1 - cfg.clip_low, 1 + cfg.clip_high
  inner, outer = max(0.0, 1 - cfg.ring_low), 1 + cfg.ring_high
  band_ratio = jnp.broadcast_to(jnp.exp(row), mask.shape) if cfg.clip == "one_side_row" else ratio
  is_high, is_low = band_ratio > high, band_ratio < low
  wrong_high, wrong_low = is_high & (advantages > 0), is_low & (advantages < 0)
  beyond = {
      "none": jnp.zeros_like(mask),
      "two_side": is_high | is_low,
      "one_side": wrong_high | wrong_low,
      "one_side_row": wrong_high | wrong_low,
      "ring": (is_high & ~((advantages <= 0) & (ratio >= outer)))
              | (is_low & ~((advantages >= 0) & (ratio <= inner))),
  }[cfg.clip]
  weight = {
      "none": jnp.ones_like(ratio),
      "ratio": ratio,
      "clipped_ratio": jnp.clip(ratio, inner, outer),
      "row_ratio": jnp.broadcast_to(jnp.exp(row), mask.shape),
  }[cfg.weight]
  gain = jnp.where(beyond, 0.0, weight) * masked.masked(advantages, mask)
  pull = jnp.where(common.saturated(log_ratio), 0.0, 2 * cfg.k2 * log_ratio)
  loss = -gain * masked.masked(log_probs, mask) + cfg.k2 * jnp.square(log_ratio)
  loss = common.with_coefficient(loss, gain - pull, log_probs, mask)
  return common.clipped(loss, mask, high=is_high & beyond, low=is_low & beyond, dropped=beyond)


@dataclasses.dataclass(frozen=True)
class Delight:
  """Hyperparameters of `delight`."""

  eta: float = option(1.0, "softness of the gate, in units of the advantage times nats", low=1e-6)


def delight_on_policy(log_probs, advantages, mask, cfg, weights):
  """Returns the coefficient of `delight`, which reads no anchor."""
  advantages, surprisal = masked.masked(advantages, mask), -masked.masked(log_probs, mask)
  return jax.nn.sigmoid(lax.stop_gradient(advantages * surprisal / cfg.eta)) * advantages


@register("delight", Delight, on_policy=delight_on_policy)
def delight(log_probs, anchor_log_probs, advantages, mask, cfg):
  """No ratio: a gate by advantage times surprisal.

    c_t     = sigmoid(-A_t log pi(a_t) / eta) A_t
    loss_t  = -stop_gradient(c_t) log pi(a_t)

  Rare successes weigh 1, rare failures 0, confident tokens 1/2: on-policy c_t is not A_t. The
  anchor is not read. The unit of the advantage matters: give a normalised one.

  Source: arXiv 2603.14608, from its abstract; the formula is from the third-party package
  kondo-gate 0.1.0 (second-hand).
  """
  del anchor_log_probs
  coefficient = delight_on_policy(log_probs, advantages, mask, cfg, None)
  loss = -coefficient * masked.masked(log_probs, mask)
  loss = common.with_coefficient(loss, coefficient, log_probs, mask)
  return common.clipped(loss, mask)
