"""Low-rank adapters: a matrix W that is read as W + scale a b.

Source: LoRA, arXiv 2106.09685.
"""

import functools
import math
import zlib

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_llm.models.layers import ADAPTABLE, MATRICES


def batch_axes(keys: tuple, rank: int) -> int:
  """Returns the number of batch axes of a weight of this rank: scanned layers, experts."""
  return rank - sum(ADAPTABLE[keys[-1]])


def logical_axes(keys: tuple, names: tuple[str, ...]) -> dict:
  """Returns the logical axes of an adapter, from its weight's axes."""
  batch, (inner, _) = batch_axes(keys, len(names)), ADAPTABLE[keys[-1]]
  return {"a": (*names[:batch], names[batch], "rank"),
          "b": (*names[:batch], "rank", names[batch + inner])}


def initial(keys: tuple, shape: tuple[int, ...], rank: int, key: jax.Array) -> dict:
  """Returns an adapter before training, for a weight of this shape."""
  batch, (inner, _) = batch_axes(keys, len(shape)), ADAPTABLE[keys[-1]]
  fan_in, fan_out = math.prod(shape[batch:batch + inner]), math.prod(shape[batch + inner:])
  bound = fan_in**-0.5
  name = "/".join(map(str, keys))
  leaf_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
  a = jax.random.uniform(leaf_key, (*shape[:batch], fan_in, rank), jnp.float32, -bound, bound)
  return {"a": a, "b": jnp.zeros((*shape[:batch], rank, fan_out), jnp.float32)}


def adapted_matrices(lora: dict, weights: dict, scale: float) -> dict:
  """Returns the blocks' matrices with their adapters, by their keys, but for those of experts.

  Args:
    lora: leaves a and b by their keys.
    weights: frozen leaves by their keys.
    scale: alpha / r.
  """
  out = {}
  for keys in {keys[:-1] for keys in lora}:
    layers = 4 - len(keys)  # a path without the layer's number is one of scanned layers
    if keys[-1] in MATRICES and batch_axes(keys, weights[keys].ndim) == layers:
      out[keys] = Adapted(weights[keys], lora[*keys, "a"], lora[*keys, "b"], scale)
  return out


def merged_weight(weight, a, b, scale: float):
  """Returns weight + scale a b, at least f32, in the shape of the weight."""
  delta = jnp.matmul(a, b, precision="highest").reshape(weight.shape)
  return weight.astype(jnp.promote_types(weight.dtype, jnp.float32)) + scale * delta


class Adapted(struct.PyTreeNode):
  """A frozen matrix of a block with its adapter, in the place of the sum of both.

  Attributes:
    weight: D times F entries, the layers of a scan before them.
    a, b: f32 [.., D, r] and [.., r, F].
    scale: alpha / r.
  """

  weight: jax.Array
  a: jax.Array
  b: jax.Array
  scale: float = struct.field(pytree_node=False)

  def product(self, x):
    """Returns x @ (weight + scale a b) for x [R, S, D], [R, S, F] in the dtype of x."""
    return adapted_product(x, self.weight, self.a, self.b, self.scale)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def adapted_product(x, weight, a, b, scale: float):
  """As `Adapted.product`. In f32 the adapter has its own product; a narrower dtype rounds the sum,
  as a sampler's weights are rounded. The gradients of a and b come from the tokens, in f32, and the
  weight has none: a backward pass has half of its products, none of the weight's size.
  """
  return _product(x, weight.reshape(x.shape[-1], -1), a, b, scale)


def _product(x, weight, a, b, scale):
  if x.dtype == jnp.float32:
    return x @ weight.astype(x.dtype) + scale * ((x @ a) @ b)
  return x @ merged_weight(weight, a, b, scale).astype(x.dtype)


def _forward(x, weight, a, b, scale):
  return adapted_product(x, weight, a, b, scale), (x, weight, a, b)


def _backward(scale, residuals, g):
  x, weight, a, b = residuals
  d_x = _product(g, weight.reshape(x.shape[-1], -1).T, b.T, a.T, scale)
  x, g = x.astype(jnp.float32), g.astype(jnp.float32)
  tokens = ((0, 1), (0, 1))
  # The narrow operand first: on CPU a transpose copies it.
  d_a = scale * jnp.tensordot(g @ b.T, x, tokens).T
  d_b = scale * jnp.tensordot(x @ a, g, tokens)
  return d_x, None, d_a, d_b


adapted_product.defvjp(_forward, _backward)
