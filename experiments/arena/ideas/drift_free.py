"""A cumulative ratio without the drift of the policy: L_t less t times the batch's mean log-ratio.

Sampled from the older policy, log-ratios have the mean -KL: L_t falls linearly and leaves any
window that grows as sqrt(t). Without its mean, what is left grows as sqrt(t), and is divided by it.
"""

import jax.numpy as jnp
from jax import lax

from jaxrl_llm import register
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.ops import masked, prefix


@register.estimator("drift_free", anchor="behavior", memory=0.5, cap=5.0)
def drift_free(log_probs, anchor_log_probs, advantages, mask, cfg):
  """w_t = min(exp(l_t - m + s_t), cap),   s_t = (L_{t-1} - (t - 1) m) t^(memory - 1)."""
  log_ratio = lax.stop_gradient(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  mean = masked.mean(log_ratio, mask)
  centred = jnp.where(mask, log_ratio - mean.total / jnp.maximum(mean.count, 1), 0.0)
  t = jnp.maximum(prefix.token_index(mask), 1).astype(centred.dtype)
  earlier = prefix.cumulative_log_ratio(centred, mask) - centred
  weight = jnp.exp(jnp.minimum(centred + earlier * t ** (cfg.memory - 1), 20.0))
  loss = common.score_function_surrogate(jnp.minimum(weight, cfg.cap), log_probs, advantages, mask)
  none = jnp.zeros_like(mask)
  counts = common.clip_counts(mask, high=weight > cfg.cap, low=none, dropped=none)
  return common.output(loss, counts)
