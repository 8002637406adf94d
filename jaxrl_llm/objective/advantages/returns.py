"""Rewards of rows and tokens, and sums of rewards over time; every advantage uses these."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.ops import masked, prefix
from jaxrl_llm.types import AdvantageInputs


def keep_mask(inputs: AdvantageInputs) -> Bool[Array, " B"]:
  """Returns `keep`, or True for every row where it is None."""
  return jnp.ones_like(inputs.group_id, bool) if inputs.keep is None else inputs.keep


def usable(inputs: AdvantageInputs) -> Bool[Array, " B"]:
  """Returns the kept rows whose group has another kept row to compare with."""
  keep = keep_mask(inputs)
  return keep & (masked.group_sum(keep.astype(jnp.int32), inputs.group_id) >= 2)


def outcomes(inputs: AdvantageInputs) -> Float[Array, " B"]:
  """Returns the outcome rewards; 0 on rows that are not kept."""
  return masked.masked(inputs.rewards, keep_mask(inputs))


def token_rewards(inputs: AdvantageInputs) -> Float[Array, "B L"]:
  """Returns the rewards of tokens without the outcome; 0 where mask or keep is False.

  All are 0 where no token rewards were given.
  """
  if inputs.token_rewards is None:
    return jnp.zeros(inputs.mask.shape, outcomes(inputs).dtype)
  return masked.masked(inputs.token_rewards, inputs.mask & keep_mask(inputs)[:, None])


def totals(inputs: AdvantageInputs) -> Float[Array, " B"]:
  """Returns R_i = outcome plus the sum of the row's token rewards; 0 on rows that are not kept."""
  if inputs.token_rewards is None:
    return outcomes(inputs)
  return outcomes(inputs) + jnp.sum(token_rewards(inputs), -1)


def rewards_to_go(outcome: Float[Array, " B"],
                  per_token: Float[Array, "B L"]) -> Float[Array, "B L"]:
  """Returns G_t = sum over s >= t of the token rewards, plus the outcome; undiscounted.

  The outcome is added at the end instead of summed over time, so that without token rewards G is
  exactly the outcome.
  """
  return outcome[:, None] + jnp.flip(jnp.cumsum(jnp.flip(per_token, -1), -1), -1)


def with_outcome(outcome: Float[Array, " B"], per_token: Float[Array, "B L"],
                 mask: Bool[Array, "B L"]) -> Float[Array, "B L"]:
  """Returns token rewards with the outcome added on the last policy token of each row."""
  columns = jnp.arange(mask.shape[-1])
  last = jnp.max(jnp.where(mask, columns, -1), -1, keepdims=True, initial=-1)
  everywhere = jnp.broadcast_to(outcome[:, None], mask.shape)
  return per_token + masked.masked(everywhere, mask & (columns == last))


def discounted_sum(values: Float[Array, "B L"], mask: Bool[Array, "B L"],
                   decay: float | Float[Array, "B 1"]) -> Float[Array, "B L"]:
  """Returns x_t = values_t + decay * x_next, where `next` is the next policy token of the row.

  A masked token neither adds nor decays: it has the entry of the next policy token, or 0 if there
  is none.
  """
  return prefix.discounted_suffix(values, mask, decay)


def next_value(values: Float[Array, "B L"], mask: Bool[Array, "B L"]) -> Float[Array, "B L"]:
  """Returns the value at the next policy token after t, across masked tokens; 0 after the last."""
  values = masked.masked(values, mask)
  suffix = prefix.linear_suffix(jnp.where(mask, 0.0, 1.0).astype(values.dtype), values)
  return jnp.concatenate([suffix[:, 1:], jnp.zeros_like(suffix[:, :1])], -1)


def constants(values: Float[Array, "*S"], inputs: AdvantageInputs) -> Float[Array, "B L"]:
  """Returns [B, 1] or [B, L] values as [B, L] without gradient, exactly 0 where mask is False."""
  return lax.stop_gradient(masked.masked(jnp.broadcast_to(values, inputs.mask.shape), inputs.mask))
