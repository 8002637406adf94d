"""Mixture-of-experts MLP of Qwen3-MoE: every token reaches its k experts, none is dropped.

Tokens are sorted by expert and multiplied group by group (`jax.lax.ragged_dot`), so that a token's result depends on
that token alone. Shapes: E experts, k experts per token, F width of an expert.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models.layers import down_std, weight
from jaxrl_llm.types import Mean


class MoE(nnx.Module):
  """sum_{e in top-k} p_e(x) expert_e(x) with p = softmax(router(x)) in f32 and SwiGLU experts.

  With `normalize_router` the k weights are divided by their sum.

  Source: arXiv 2505.09388, section 2; arXiv 1701.06538.
  """

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    self.cfg = cfg
    experts, width, inner = cfg.num_experts, cfg.width, cfg.expert_width
    self.router = weight(rngs, (width, experts), ("embed", "router"))
    self.gate = weight(rngs, (experts, width, inner), ("experts", "embed", "mlp"))
    self.up = weight(rngs, (experts, width, inner), ("experts", "embed", "mlp"))
    self.down = weight(rngs, (experts, inner, width), ("experts", "mlp", "embed"), down_std(cfg))

  def __call__(self, x, constrain, routing=None):
    """Output, and the experts that each token was sent to.

    Args:
      x: [R, S, D].
      constrain: lays an activation out by its logical axes.
      routing: [R, S, k] int32, the experts to use instead of the k most probable; their weights are those of the
        present router. None: the router chooses.

    Returns:
      (output [R, S, D], routing [R, S, k] int32).
    """
    probabilities = jax.nn.softmax(x.astype(jnp.float32) @ self.router[...].astype(jnp.float32), -1)
    if routing is None:
      routing = lax.top_k(probabilities, self.cfg.experts_per_token)[1].astype(jnp.int32)
    shares = jnp.take_along_axis(probabilities, routing, -1)
    if self.cfg.normalize_router:
      shares = shares / jnp.sum(shares, -1, keepdims=True)
    out = self._experts(x.reshape(-1, x.shape[-1]), routing.reshape(-1, routing.shape[-1]))
    out = jnp.sum(out.reshape(*shares.shape, -1) * shares[..., None], -2).astype(x.dtype)
    return constrain(out, ("rows", "length", "embed_activation")), routing

  def _experts(self, tokens: Float[Array, "T D"], routing: Int[Array, "T k"]) -> Float[Array, "T k D"]:
    """Each token through each of its experts, in f32."""
    chosen = routing.reshape(-1)
    order = jnp.argsort(chosen, stable=True)
    sizes = jnp.bincount(chosen, length=self.cfg.num_experts).astype(jnp.int32)
    product = lambda x, matrix: lax.ragged_dot(x, matrix[...].astype(x.dtype), sizes)
    entered = tokens[order // routing.shape[-1]]
    inner = jax.nn.silu(product(entered, self.gate)) * product(entered, self.up)
    left = product(inner, self.down).astype(jnp.float32)
    return left[jnp.argsort(order)].reshape(*routing.shape, -1)


def expert_load(routing: Int[Array, "N R S k"], mask: Bool[Array, "R S"], num_experts: int) -> Mean:
  """Fraction of the tokens that each expert serves; an even load is k / E everywhere.

  Args:
    routing: experts of each layer and token, from `Model.hidden_and_routing`.
    mask: the tokens that count.
    num_experts: E.

  Returns:
    Mean with total and count [N, E]; the fractions of a layer sum to k.
  """
  used = jnp.any(routing[..., None] == jnp.arange(num_experts), -2) & mask[None, ..., None]
  total = jnp.sum(used, (1, 2)).astype(jnp.float32)
  return Mean(total, jnp.broadcast_to(jnp.sum(mask).astype(jnp.float32), total.shape))
