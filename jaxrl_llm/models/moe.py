"""Mixture-of-experts MLP of Qwen3-MoE: every token reaches its k experts, none is dropped.

Tokens are sorted by expert and multiplied group by group (`jax.lax.ragged_dot`), so that the result
of a token depends on no other token. On a mesh the experts are divided over the axis `tensor`, and
no token leaves the devices that hold it.

Shapes: R rows, S tokens per row, D width, E experts, k experts per token, F width of an expert.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxrl_llm import parallel
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models.layers import down_std, weight


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

  def __call__(self, x, constrain, replayed=None):
    """Returns (output [R, S, D], the k most likely experts of each token [R, S, k] int32).

    Args:
      x: [R, S, D].
      constrain: lays an activation out by its logical axes.
      replayed: [R, S, k] int32, experts in place of the most likely ones, -1 where these are taken.
        Their weights are this router's, and have gradients. None: the most likely ones.
    """
    probabilities = jax.nn.softmax(x.astype(jnp.float32) @ self.router[...].astype(jnp.float32), -1)
    likely = lax.top_k(probabilities, self.cfg.experts_per_token)[1].astype(jnp.int32)
    routing = likely if replayed is None else jnp.where(replayed >= 0, replayed, likely)
    shares = jnp.take_along_axis(probabilities, routing, -1)
    if self.cfg.normalize_router:
      shares = shares / jnp.sum(shares, -1, keepdims=True)
    weights = [matrix[...].astype(x.dtype) for matrix in (self.gate, self.up, self.down)]
    out = _spread(constrain, x, routing, shares, weights).astype(x.dtype)
    return constrain(out, ("rows", "length", "embed_activation")), likely


def _spread(constrain, x, routing, shares, weights):
  """Computes `serve` so that each device sorts its own tokens for its own experts.

  Left to the compiler, the sort would gather all rows on every device.
  """
  if not isinstance(constrain, parallel.Layout) or constrain.mesh.size == 1:
    return serve(x, routing, shares, weights, 0)
  mesh = constrain.mesh
  rows = parallel.spec(("rows", "length", None), x.shape, mesh)
  experts = parallel.spec(("experts", None, None), weights[0].shape, mesh)
  axis = experts[0]

  def local(x, routing, shares, gate, up, down):
    if axis is None:
      return serve(x, routing, shares, (gate, up, down), 0)
    # JAX 0.10 takes the permutation of argsort to be equal on all shards. Without this cast the
    # gather by it loses the gradient of the other shards.
    x = lax.pcast(x, axis, to="varying")
    first = lax.axis_index(axis) * gate.shape[0]
    return lax.psum(serve(x, routing, shares, (gate, up, down), first), axis)

  return jax.shard_map(local, mesh=mesh, in_specs=(rows, rows, rows, experts, experts, experts),
                       out_specs=rows)(x, routing, shares, *weights)


def serve(x: Float[Array, "R S D"], routing: Int[Array, "R S k"], shares: Float[Array, "R S k"],
          experts: tuple[Float[Array, "E D F"], Float[Array, "E D F"], Float[Array, "E F D"]],
          first) -> Float[Array, "R S D"]:
  """Returns the sum of the outputs of each token's experts, weighted by `shares`, in f32.

  Only the experts first .. first + E - 1 are computed, whose weights are given. Tokens sent to
  other experts are sorted to the end and add nothing.

  Args:
    x: [R, S, D].
    routing: [R, S, k] int32.
    shares: [R, S, k] f32.
    experts: the matrices gate and up, [E, D, F], and down, [E, F, D].
    first: scalar int.
  """
  gate, up, down = experts
  count = gate.shape[0]
  expert_ids = routing.reshape(-1) - first
  expert_ids = jnp.where((expert_ids >= 0) & (expert_ids < count), expert_ids, count)
  order = jnp.argsort(expert_ids, stable=True)
  sizes = jnp.bincount(expert_ids, length=count + 1)[:count].astype(jnp.int32)
  is_served = (expert_ids[order] < count)[:, None]

  def product(x, matrices):
    return jnp.where(is_served, lax.ragged_dot(x, matrices, sizes), 0)

  inputs = x.reshape(-1, x.shape[-1])[order // routing.shape[-1]]
  inner = jax.nn.silu(product(inputs, gate)) * product(inputs, up)
  outputs = product(inner, down).astype(jnp.float32)[jnp.argsort(order)]
  return jnp.sum(outputs.reshape(*routing.shape, -1) * shares[..., None], -2)
