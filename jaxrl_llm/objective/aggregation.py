"""How tokens share the loss: a weighting of the whole optimizer batch, computed once, before any
gradient.

loss = sum(loss_weights * per_token_loss). The denominators are those of the whole batch, so neither
micro-batches nor padding nor sharding can change the loss.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.config import AggregationConfig, ConfigError
from jaxrl_llm.ops import masked


def loss_weights(mask: Bool[Array, "B L"], advantages: Float[Array, "B L"] | None,
                 group_id: Int[Array, " B"] | None, cfg: AggregationConfig,
                 keep: Bool[Array, " B"] | None = None) -> Float[Array, "B L"]:
  """Weight of each token, f32; 0 where mask or keep is False.

  With n rows that are kept and have a policy token, T_i policy tokens in row i:

    token          1 / sum_i T_i          DAPO, CISPO, MinPRO
    token_sum      1
    sequence       1 / (n T_i)            GRPO, GSPO, CTPO
    sequence_sum   1 / n
    fixed          1 / (n fixed_length)   Dr.GRPO
    balanced       see `_balanced`

  Args:
    mask: [B, L].
    advantages, group_id: read by `balanced` alone, but f64 advantages give f64 weights in every
      mode.
    cfg: mode and, for `fixed`, its divisor.
    keep: [B] or None (all rows).

  Raises:
    ConfigError: `fixed` without `fixed_length`: a width taken from the batch would make the loss
    depend on padding.
    ValueError: `balanced` without advantages or group_id.

  Source: methods A12, A3.
  """
  live = mask if keep is None else mask & keep[:, None]
  if cfg.name == "balanced":
    if advantages is None or group_id is None:
      raise ValueError(
          "aggregation 'balanced' needs advantages and group_id: it weighs by side and group")
    return lax.stop_gradient(_balanced(live, advantages, group_id))
  dtype = jnp.float32 if advantages is None else jnp.promote_types(advantages.dtype, jnp.float32)
  live = live.astype(dtype)
  length = jnp.sum(live, -1, keepdims=True)
  rows = jnp.sum(length > 0).astype(dtype)
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
      raise ConfigError(
          "aggregation.fixed_length is unset: `fixed` needs a constant, in tokens (a run takes "
          "rollout.max_new_tokens). Fix: AggregationConfig('fixed', fixed_length=...).")
    weights = masked.safe_divide(live, rows * cfg.fixed_length)
  else:
    raise ConfigError(
        f"aggregation.name = {cfg.name!r}: allowed are token, token_sum, sequence, sequence_sum, "
        "fixed, "
        "balanced.")
  return lax.stop_gradient(weights)


def regularizer_weights(mask: Bool[Array, "B L"], cfg: AggregationConfig,
                        keep: Bool[Array, " B"] | None = None) -> Float[Array, "B L"]:
  """Weights of the same mode for terms without an advantage (KL, entropy, value): `token` for
  `balanced`.
  """
  plain = dataclasses.replace(cfg, name="token") if cfg.name == "balanced" else cfg
  return loss_weights(mask, None, None, plain, keep)


def _balanced(live: Bool[Array, "B L"], advantages: Float[Array, "B L"], group_id: Int[Array, " B"]
              ) -> Float[Array, "B L"]:
  """Tokens of positive and of negative rows are averaged apart, and joined by the share of rows on
  each side.

    weight of a token of side s in group g = (rows of s in g) / (rows of g) / (tokens of s in g) /
    (groups)

  A row's side is the sign of its mean advantage over its live tokens. Rows without a live token
  count nowhere; rows whose mean is 0 count among the rows of the group and weigh 0; a group without
  one side keeps the other's term alone; groups are those with a live row. Zero rows and the average
  over groups are unconfirmed in the source; this is ours.

  Groups must be whole: splitting one between two calls changes its weights.

  Source: arXiv 2605.04077; methods A3.
  """
  dtype = jnp.promote_types(advantages.dtype, jnp.float32)
  length = jnp.sum(live, -1).astype(dtype)
  alive = (length > 0).astype(dtype)
  total = lambda x: masked.group_sum(x, group_id)
  index = masked.group_index(group_id)
  groups = jnp.sum(
      jax.ops.segment_max(length, index, num_segments=length.shape[0]) > 0).astype(dtype)
  side = jnp.sign(masked.row_mean(advantages, live))[:, 0]
  weights = jnp.zeros_like(length)
  for sign in (1, -1):
    mine = (side == sign).astype(dtype)
    share = masked.safe_divide(total(mine), total(alive))
    weights += mine * masked.safe_divide(share, groups * total(mine * length))
  return masked.masked(jnp.broadcast_to(weights[:, None], live.shape), live)
