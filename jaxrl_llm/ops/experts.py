"""Load of the experts of a mixture, and how many of them a replay put in place of others."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl_llm.types import Mean


def expert_load(routing: Int[Array, "N R S k"], mask: Bool[Array, "R S"] | Int[Array, "R S"],
                num_experts: int) -> Mean:
  """Returns the share of the (layer, token) pairs that each expert serves; k / E everywhere if
  balanced.

  Args:
    routing: [N, R, S, k] int32, from `Model.hidden_and_routing`.
    mask: [R, S] bool, True on the tokens that count, or int, how often each counts.
    num_experts: E.

  Returns:
    Mean with f32 total and count [E]; the shares sum to k.
  """
  used = jnp.any(routing[..., None] == jnp.arange(num_experts), -2) * mask[None, ..., None]
  total = jnp.sum(used, (0, 1, 2)).astype(jnp.float32)
  return Mean(total, jnp.full(num_experts, routing.shape[0] * jnp.sum(mask), jnp.float32))


def replaced_experts(routing: Int[Array, "N R S k"], likely: Int[Array, "N R S k"],
                     mask: Bool[Array, "R S"] | Int[Array, "R S"]) -> Mean:
  """Returns the share of the experts that tokens were sent to and that are not among the router's
  own k.

  Args:
    routing, likely: [N, R, S, k] int32, the experts that served, and the router's choice.
    mask: as of `expert_load`.
  """
  is_likely = jnp.any(routing[..., None] == likely[..., None, :], -1)
  served = jnp.broadcast_to(mask[None, ..., None], routing.shape).astype(jnp.float32)
  return Mean(jnp.sum(jnp.where(is_likely, 0, served)), jnp.sum(served))
