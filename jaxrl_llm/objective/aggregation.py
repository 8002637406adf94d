"""How tokens share the loss: a weighting of the whole optimizer batch, computed once, before any gradient.

loss = sum(loss_weights * per_token_loss). The denominators are those of the whole batch, so neither micro-batches nor
padding nor sharding can change the loss.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.config import AggregationConfig, ConfigError
from jaxrl_llm.ops import masked


def loss_weights(mask: Bool[Array, "B L"], advantages: Float[Array, "B L"] | None, group_id: Int[Array, " B"] | None,
                 cfg: AggregationConfig, keep: Bool[Array, " B"] | None = None) -> Float[Array, "B L"]:
  """Weight of each token, f32; 0 where mask or keep is False.

  With n rows that are kept and have a policy token, T_i policy tokens in row i:

    token          1 / sum_i T_i          DAPO, CISPO, MinPRO
    token_sum      1
    sequence       1 / (n T_i)            GRPO, GSPO, CTPO
    sequence_sum   1 / n
    fixed          1 / (n fixed_length)   Dr.GRPO

  Args:
    mask: [B, L].
    advantages, group_id: read by modes that weigh by side or group; none of the above does.
    cfg: mode and, for `fixed`, its divisor.
    keep: [B] or None (all rows).

  Raises:
    ConfigError: `fixed` without `fixed_length`: a width taken from the batch would make the loss depend on padding.

  Source: methods A12.
  """
  del advantages, group_id
  live = mask if keep is None else mask & keep[:, None]
  live = live.astype(jnp.float32)
  length = jnp.sum(live, -1, keepdims=True)
  rows = jnp.sum(length > 0).astype(jnp.float32)
  if cfg.name == "token":
    weights = masked.safe_divide(live, jnp.sum(live))
  elif cfg.name == "token_sum":
    weights = live
  elif cfg.name == "sequence":
    weights = masked.safe_divide(live, rows * length)
  elif cfg.name == "sequence_sum":
    weights = masked.safe_divide(live, rows)
  elif cfg.name == "fixed":
    if cfg.fixed_length is None:
      raise ConfigError("aggregation.fixed_length is unset: `fixed` needs a constant, in tokens (a run takes "
                        "rollout.max_new_tokens). Fix: AggregationConfig('fixed', fixed_length=...).")
    weights = masked.safe_divide(live, rows * cfg.fixed_length)
  else:
    raise ConfigError(f"aggregation.name = {cfg.name!r}: allowed are token, token_sum, sequence, sequence_sum, fixed.")
  return lax.stop_gradient(weights)
