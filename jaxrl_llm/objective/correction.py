"""Sampler / trainer mismatch: truncated importance weights anchor / behavior, constants in the loss."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.config import ConfigError, CorrectionConfig
from jaxrl_llm.objective.estimators.common import LOG_RATIO_BOUND, masked_log_ratio
from jaxrl_llm.ops import masked


def correction_weights(anchor_log_probs: Float[Array, "B L"], behavior_log_probs: Float[Array, "B L"],
                       mask: Bool[Array, "B L"], cfg: CorrectionConfig) -> tuple[Float[Array, "B L"], dict]:
  """Weight that multiplies each token's loss, and its metrics.

    none      1
    token     min(k_t, cap)                 k_t = anchor(a_t) / behavior(a_t)
    sequence  min(prod_t k_t, cap)          on every token of the row; the log sum is kept within +-20

  Returns:
    ([B, L] f32, 1 where mask is False; metrics: mean weight, share truncated).

  Source: methods E21 (Token-TIS, Seq-TIS).
  """
  log_ratio = masked_log_ratio(anchor_log_probs, behavior_log_probs, mask)
  if cfg.level == "none":
    log_weight = jnp.zeros_like(log_ratio)
  elif cfg.level == "token":
    log_weight = log_ratio
  elif cfg.level == "sequence":
    log_weight = jnp.broadcast_to(jnp.sum(log_ratio, -1, keepdims=True), mask.shape)
  else:
    raise ConfigError(f"correction.level = {cfg.level!r}: allowed are none, token, sequence.")
  raw = jnp.exp(jnp.clip(log_weight, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
  weights = jnp.where(mask, raw if cfg.level == "none" else jnp.minimum(raw, cfg.cap), 1.0)
  truncated = (raw > cfg.cap) & (cfg.level != "none")
  metrics = {"correction/weight": masked.mean(weights, mask),
             "correction/truncated": masked.mean(truncated.astype(jnp.float32), mask)}
  return lax.stop_gradient(weights), metrics
