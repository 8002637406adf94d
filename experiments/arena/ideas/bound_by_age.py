"""CISPO's bound by staleness: staler rows spread log-ratios wider, and get a tighter bound.

The spread of the batch's log-ratios stands for the staleness, so that one number serves all.
"""

import jax.numpy as jnp
from jax import lax

from jaxrl_llm import register
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.ops import masked


@register.estimator("bound_by_age", anchor="behavior", widest=5.0, slope=2.0)
def bound_by_age(log_probs, anchor_log_probs, advantages, mask, cfg):
  """w_t = min(r_t, 1 + (widest - 1) / (1 + slope sigma)),   sigma: rms log-ratio of the batch."""
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  square = masked.mean(jnp.square(log_ratio), mask)
  sigma = jnp.sqrt(square.total / jnp.maximum(square.count, 1))
  bound = 1 + (cfg.widest - 1) / (1 + cfg.slope * sigma)
  ratio, none = jnp.exp(log_ratio), jnp.zeros_like(mask)
  loss = common.score_function_surrogate(jnp.minimum(ratio, bound), log_probs, advantages, mask)
  counts = common.clip_counts(mask, high=ratio > bound, low=none, dropped=none)
  return common.output(loss, counts)
