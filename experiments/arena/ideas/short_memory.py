"""A ratio with a short memory: the product over the last tokens, weighed down by distance.

Between the token's ratio (decay 0) and the prefix's (decay 1): c_t = l_t + decay c_{t-1}. Its mean
and spread stop growing after 1 / (1 - decay) tokens, so that one bound serves rows of any length.
"""

import jax.numpy as jnp
from jax import lax

from jaxrl_llm import register
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.ops import prefix


@register.estimator("short_memory", anchor="behavior", decay=0.5, cap=5.0)
def short_memory(log_probs, anchor_log_probs, advantages, mask, cfg):
  """w_t = min(exp(c_t), cap): every token keeps a gradient."""
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  backwards = prefix.discounted_suffix(log_ratio[:, ::-1], mask[:, ::-1], cfg.decay)[:, ::-1]
  weight = jnp.exp(jnp.minimum(backwards, 20.0))
  loss = common.score_function_surrogate(jnp.minimum(weight, cfg.cap), log_probs, advantages, mask)
  none = jnp.zeros_like(mask)
  counts = common.clip_counts(mask, high=weight > cfg.cap, low=none, dropped=none)
  return common.output(loss, counts)
