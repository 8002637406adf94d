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
from jaxrl_llm.fields import option
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import AGGREGATIONS, Entry


@dataclasses.dataclass(frozen=True)
class Fixed:
  """Number of `fixed`."""

  fixed_length: int | None = option(None, "divisor, tokens; none: rollout.max_new_tokens", low=1)


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
    advantages, group_id: only `balanced` reads them, but f64 advantages give f64 weights in every
      mode.
    cfg: mode and, for `fixed`, its divisor.
    keep: [B] or None (all rows).

  Raises:
    ConfigError: `fixed` without `fixed_length`: a width taken from the batch would make the loss
      depend on padding.
    ValueError: `balanced` without advantages or group_id.

  Source: objective/README.md, section on aggregation.
  """
  live = mask if keep is None else mask & keep[:, None]
  weigh, numbers = AGGREGATIONS[cfg.name].function, AGGREGATIONS.numbers(cfg, strict=False)
  return lax.stop_gradient(weigh(live, advantages, group_id, numbers))


def regularizer_weights(mask: Bool[Array, "B L"], cfg: AggregationConfig,
                        keep: Bool[Array, " B"] | None = None) -> Float[Array, "B L"]:
  """Weights of the same mode for terms without an advantage (KL, entropy, value): `token` for
  `balanced`.
  """
  plain = dataclasses.replace(cfg, name="token") if cfg.name == "balanced" else cfg
  return loss_weights(mask, None, None, plain, keep)


def _counted(live: Bool[Array, "B L"], advantages: Float[Array, "B L"] | None):
  """(live as numbers [B, L], its sum over each row [B, 1], rows with a live token)."""
  dtype = jnp.float32 if advantages is None else jnp.promote_types(advantages.dtype, jnp.float32)
  live = live.astype(dtype)
  length = jnp.sum(live, -1, keepdims=True)
  return live, length, jnp.sum(length > 0).astype(dtype)


def _token(live, advantages, group_id, cfg):
  live, _, _ = _counted(live, advantages)
  return masked.safe_divide(live, jnp.sum(live))


def _token_sum(live, advantages, group_id, cfg):
  return _counted(live, advantages)[0]


def _sequence(live, advantages, group_id, cfg):
  live, length, rows = _counted(live, advantages)
  return masked.safe_divide(live, rows * length)


def _sequence_sum(live, advantages, group_id, cfg):
  live, _, rows = _counted(live, advantages)
  return masked.safe_divide(live, rows)


def _fixed(live, advantages, group_id, cfg: Fixed):
  if cfg.fixed_length is None:
    raise ConfigError(
        "aggregation.fixed_length is unset: `fixed` needs a constant, in tokens (a run takes "
        "rollout.max_new_tokens). Fix: AggregationConfig('fixed', fixed_length=...).")
  live, _, rows = _counted(live, advantages)
  return masked.safe_divide(live, rows * cfg.fixed_length)


def _balanced(live, advantages, group_id, cfg) -> Float[Array, "B L"]:
  """Tokens of positive and of negative rows are averaged apart, and joined by the share of rows on
  each side.

    weight of a token of side s in group g = (rows of s in g) / (rows of g) / (tokens of s in g) /
    (groups)

  A row's side is the sign of its mean advantage over its live tokens. Rows without a live token
  count nowhere; rows whose mean is 0 count among the rows of the group and weigh 0; a group without
  one side keeps the other's term alone; groups are those with a live row. Zero rows and the average
  over groups are unconfirmed in the source; this is ours.

  Groups must be whole: splitting one between two calls changes its weights.

  Source: arXiv 2605.04077.
  """
  if advantages is None or group_id is None:
    raise ValueError("aggregation 'balanced' needs advantages and group_id: it weighs by side and "
                     "group")
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


# weigh(live [B, L], advantages, group_id, cfg) -> [B, L]
for _name, _weigh in (("token", _token), ("token_sum", _token_sum), ("sequence", _sequence),
                      ("sequence_sum", _sequence_sum), ("balanced", _balanced)):
  AGGREGATIONS.add(_name, Entry(_weigh))
AGGREGATIONS.add("fixed", Entry(_fixed, Fixed))
