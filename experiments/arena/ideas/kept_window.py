"""A window that keeps the gradient beyond it, with a slope that falls with staleness.

Dropped gradient is what holds GRPO back on old rows. Beyond the window the weight goes on as a
power of the ratio: all of it while rows are fresh, less and less as log-ratios spread.
"""

import jax.numpy as jnp
from jax import lax

from jaxrl_llm import register
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.ops import masked


@register.estimator("kept_window", anchor="behavior", width=0.2, decay=4.0)
def kept_window(log_probs, anchor_log_probs, advantages, mask, cfg):
  """log w_t = c + a (l_t - c),   c: l_t clipped to +-width,   a = 1 / (1 + decay sigma)."""
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  square = masked.mean(jnp.square(log_ratio), mask)
  sigma = jnp.sqrt(square.total / jnp.maximum(square.count, 1))
  inside = jnp.clip(log_ratio, -cfg.width, cfg.width)
  weight = jnp.exp(inside + (log_ratio - inside) / (1 + cfg.decay * sigma))
  none = jnp.zeros_like(mask)
  loss = common.score_function_surrogate(weight, log_probs, advantages, mask)
  return common.output(loss, common.clip_counts(mask, high=log_ratio > cfg.width,
                                                low=log_ratio < -cfg.width, dropped=none))
