"""Weights of tokens in the loss: one weight per token of the full optimizer batch.

loss = sum(loss_weights * per_token_loss). The weights are computed once, before any gradient. Their
denominators count the full batch, so that micro-batches, padding and sharding do not change the
loss.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.config import AggregationConfig, ConfigError
from jaxrl_llm.fields import option
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import AGGREGATIONS


@dataclasses.dataclass(frozen=True)
class Fixed:
  """Number of `fixed`."""

  fixed_length: int | None = option(None, "divisor, tokens; none: rollout.max_new_tokens", low=1)


def register(name: str, numbers: type | None = None, *, replace: bool = False, **defaults):
  """Returns a decorator that enters an aggregation: a function (live, advantages, group_id, cfg).

  It returns the weight of each token, [B, L]. `live` is True on the policy tokens of kept rows.
  `advantages` and `group_id` are None where the terms without an advantage (KL, entropy, value) are
  weighed. Arguments as in `registry.Table.register`.
  """
  return AGGREGATIONS.register(name, numbers, replace=replace, **defaults)


def loss_weights(mask: Bool[Array, "B L"], advantages: Float[Array, "B L"] | None,
                 group_id: Int[Array, " B"] | None, cfg: AggregationConfig,
                 keep: Bool[Array, " B"] | None = None) -> Float[Array, "B L"]:
  """Returns the weight of each token, f32; 0 where mask or keep is False.

  With n rows that are kept and have a policy token, T_i policy tokens in row i:

    token          1 / sum_i T_i          DAPO, CISPO, MinPRO
    token_sum      1
    sequence       1 / (n T_i)            GRPO, GSPO, CTPO
    sequence_sum   1 / n
    fixed          1 / (n fixed_length)   Dr.GRPO
    balanced       see `_balanced`

  Args:
    mask: [B, L].
    advantages, group_id: read by `balanced` only, and may be None for the others. With f64
      advantages the weights are f64 in every mode.
    cfg: mode and, for `fixed`, its divisor.
    keep: [B], or None to keep all rows.

  Raises:
    ConfigError: `fixed` without `fixed_length`: a width taken from the batch would make the loss
      depend on padding.
    ValueError: `balanced` without advantages or group_id.

  Source: objective/advantages.md, "Aggregation".
  """
  live = mask if keep is None else mask & keep[:, None]
  weigh, numbers = AGGREGATIONS[cfg.name].function, AGGREGATIONS.numbers(cfg, strict=False)
  return lax.stop_gradient(weigh(live, advantages, group_id, numbers))


def regularizer_weights(mask: Bool[Array, "B L"], cfg: AggregationConfig,
                        keep: Bool[Array, " B"] | None = None) -> Float[Array, "B L"]:
  """Returns the weights of terms without an advantage (KL, entropy, value).

  They use the same mode, but `token` in place of `balanced`, which needs advantages.
  """
  plain = dataclasses.replace(cfg, name="token") if cfg.name == "balanced" else cfg
  return loss_weights(mask, None, None, plain, keep)


def _live_counts(live: Bool[Array, "B L"], advantages: Float[Array, "B L"] | None):
  """Returns live as numbers [B, L], live tokens per row [B, 1], and the number of live rows."""
  dtype = jnp.float32 if advantages is None else jnp.promote_types(advantages.dtype, jnp.float32)
  live = live.astype(dtype)
  length = jnp.sum(live, -1, keepdims=True)
  return live, length, jnp.sum(length > 0).astype(dtype)


@register("token")
def _token(live, advantages, group_id, cfg):
  live, _, _ = _live_counts(live, advantages)
  return masked.safe_divide(live, jnp.sum(live))


@register("token_sum")
def _token_sum(live, advantages, group_id, cfg):
  return _live_counts(live, advantages)[0]


@register("sequence")
def _sequence(live, advantages, group_id, cfg):
  live, length, rows = _live_counts(live, advantages)
  return masked.safe_divide(live, rows * length)


@register("sequence_sum")
def _sequence_sum(live, advantages, group_id, cfg):
  live, _, rows = _live_counts(live, advantages)
  return masked.safe_divide(live, rows)


@register("fixed", Fixed)
def _fixed(live, advantages, group_id, cfg: Fixed):
  if cfg.fixed_length is None:
    raise ConfigError(
        "aggregation.fixed_length is unset: `fixed` needs a constant, in tokens (a run takes "
        "rollout.max_new_tokens). Fix: AggregationConfig('fixed', fixed_length=...).")
  live, _, rows = _live_counts(live, advantages)
  return masked.safe_divide(live, rows * cfg.fixed_length)


@register("balanced")
def _balanced(live, advantages, group_id, cfg) -> Float[Array, "B L"]:
  """Averages tokens of positive and of negative rows separately, then joins the two by rows per
  side.

    weight of a token on side s of group g = (rows of s in g) / (rows of g) / (tokens of s in g)
                                             / (groups)

  A row's side is the sign of its mean advantage over its live tokens. Rows whose mean is 0 count
  among the rows of the group and weigh 0. Rows without a live token count nowhere, nor do groups
  without a live row. A group with only one side keeps only that side's term. The source does not
  confirm the treatment of zero rows nor the average over groups; both are own choices.

  Groups must be complete: splitting one between two calls changes its weights.

  Source: arXiv 2605.04077.
  """
  if advantages is None or group_id is None:
    raise ValueError("aggregation 'balanced' needs advantages and group_id: it weighs rows by side "
                     "and group")
  dtype = jnp.promote_types(advantages.dtype, jnp.float32)
  length = jnp.sum(live, -1).astype(dtype)
  alive = (length > 0).astype(dtype)
  index = masked.group_index(group_id)
  longest = jax.ops.segment_max(length, index, num_segments=length.shape[0])
  groups = jnp.sum(longest > 0).astype(dtype)
  side = jnp.sign(masked.row_mean(advantages, live))[:, 0]
  weights = jnp.zeros_like(length)
  for sign in (1, -1):
    mine = (side == sign).astype(dtype)
    rows_of_side = masked.group_sum(mine, group_id)
    share = masked.safe_divide(rows_of_side, masked.group_sum(alive, group_id))
    tokens_of_side = masked.group_sum(mine * length, group_id)
    weights += mine * masked.safe_divide(share, groups * tokens_of_side)
  return masked.masked(jnp.broadcast_to(weights[:, None], live.shape), live)
