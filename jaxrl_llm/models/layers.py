"""Norm, attention layer and dense MLP of a decoder block.

Shapes: R rows, S tokens per row, T slots attended to, D width, H heads, K kv-heads, d head width.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxrl_llm.config import ModelConfig, RopeScalingConfig
from jaxrl_llm.models import int8, kv_cache, live_attention
from jaxrl_llm.models.attention import attend, attend_shared
from jaxrl_llm.models.rope import attention_factor, frequencies, rotate
from jaxrl_llm.models.row_attention import attend_rows, platform_of

INIT_STD = 0.02
# Matrices of a block, by the last key of their path: (number of input axes, number of output axes).
# Axes before them are batches: scanned layers, experts.
MATRICES = {
    "query": (1, 2),
    "key": (1, 2),
    "value": (1, 2),
    "out": (2, 1),
    "gate": (1, 1),
    "up": (1, 1),
    "down": (1, 1),
}
# Weights that can have an adapter, likewise.
ADAPTABLE = MATRICES | {"router": (1, 1), "head": (1, 1)}

ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True)}


def weight(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...],
           std: float = INIT_STD) -> nnx.Param:
  """Returns a normal-initialised f32 parameter that carries its logical axes."""
  return nnx.Param(std * jax.random.normal(rngs.params(), shape, jnp.float32), axes=axes)


def matrix(cfg: ModelConfig, rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...],
           std: float = INIT_STD, produced: int = 1):
  """Returns a parameter for `multiply`: a `weight`, or an Int8Matrix if `cfg` says so.

  Args:
    produced: number of output axes.
  """
  quantization = cfg.quantization if isinstance(cfg, kv_cache.DecodingConfig) else int8.NONE
  if quantization == int8.NONE:
    return weight(rngs, shape, axes, std)
  return int8.Int8Matrix(shape, axes, produced, quantization == int8.PRODUCTS)


def zeros(shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param:
  """Returns an f32 parameter that starts at zero and carries its logical axes."""
  return nnx.Param(jnp.zeros(shape, jnp.float32), axes=axes)


def down_std(cfg: ModelConfig) -> float:
  """Returns the initial standard deviation of a projection into the residual stream; each block has
  two.
  """
  return INIT_STD / (2 * cfg.num_layers) ** 0.5


@jax.custom_vjp
def product(x, matrix):
  """Returns x @ matrix for x [R, S, D] and a matrix [D, F], with a backward pass that is faster on
  CPU.

  The gradient of the matrix is x^T g if D <= F, else (g^T x)^T. On CPU a transpose copies its
  operand, which costs more than its share of the product, so the narrower operand is transposed.
  """
  return x @ matrix


def _product_forward(x, matrix):
  return x @ matrix, (x, matrix)


def _product_backward(residuals, g):
  x, matrix = residuals
  flat_x, flat_g = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
  narrower = matrix.shape[0] <= matrix.shape[1]
  d_matrix = flat_x.T @ flat_g if narrower else (flat_g.T @ flat_x).T
  return (g @ matrix.T).reshape(x.shape), d_matrix


product.defvjp(_product_forward, _product_backward)


def multiply(x, matrix, constrain):
  """Returns x @ matrix, [R, S, F], for x [R, S, D] and D times F entries; F may be two axes.

  `constrain` lays activations out, and knows whether rows' tokens are divided over devices.
  """
  if isinstance(matrix, int8.Int8Matrix):
    return matrix.product(x)
  if hasattr(matrix.get_value(), "product"):  # adapters.Adapted
    return matrix.get_value().product(x)
  entries = matrix[...].astype(x.dtype)
  if entries.ndim == 3 and len(entries) == x.shape[-1] and platform_of(constrain) == "tpu":
    return jnp.tensordot(x, entries, 1)  # by head: a TPU would copy what becomes heads later
  # One product with a matrix is faster on CPU than a contraction over heads.
  flat = entries.reshape(x.shape[-1], -1)
  # The gradient of `product` makes one axis of rows and tokens. If both are divided, all of them
  # would be gathered for that.
  return x @ flat if getattr(constrain, "divides_tokens", False) else product(x, flat)


class RMSNorm(nnx.Module):
  """x / sqrt(mean(x^2) + epsilon) * scale over the last axes, computed in f32.

  With `offset` 1 + scale multiplies (Gemma), and scale starts at 0.

  Source: arXiv 1910.07467.
  """

  def __init__(self, sizes: tuple[int, ...], axes: tuple[str, ...], epsilon: float,
               offset: bool = False):
    self.scale = nnx.Param((jnp.zeros if offset else jnp.ones)(sizes, jnp.float32), axes=axes)
    self.epsilon, self.offset = epsilon, offset

  def __call__(self, x):
    full, scale = x.astype(jnp.float32), self.scale[...]
    axes = tuple(range(-scale.ndim, 0))
    full = full * lax.rsqrt(jnp.mean(jnp.square(full), axes, keepdims=True) + self.epsilon)
    return (full * (1 + scale if self.offset else scale)).astype(x.dtype)


def width_norm(cfg: ModelConfig) -> RMSNorm:
  """Returns a norm of the residual stream."""
  return RMSNorm((cfg.width,), ("embed",), cfg.norm_epsilon, cfg.norm_offset)


def head_norm(cfg: ModelConfig, heads: int, axis: str) -> RMSNorm:
  """Returns a norm of queries or keys: of each head, or of all together."""
  sizes, axes = (heads, cfg.head_dim), (axis, "head_dim")
  first = 0 if cfg.wide_qk_norm else 1
  return RMSNorm(sizes[first:], axes[first:], cfg.norm_epsilon, cfg.norm_offset)


class Attention(nnx.Module):
  """Grouped-query attention with rotary positions.

  By config, projections have biases (Qwen2, and `attention_bias` of Llama and Qwen3), and queries
  and keys are normalised (Qwen3); a layer may have no rotary embedding (SmolLM3), or that of layers
  with a window (Gemma 3).
  """

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, layer: int = 0):
    width, size = cfg.width, cfg.head_dim
    self.cfg, self.window = cfg, kv_cache.windows(cfg)[layer]
    self.has_rope = layer not in cfg.no_rope_layers
    kv_shape, kv_axes = (width, cfg.num_kv_heads, size), ("embed", "kv_heads", "head_dim")
    heads_axes = ("embed", "heads", "head_dim")
    if kv_cache.is_fused(cfg):
      self.fused = weight(rngs, (width, cfg.num_heads + 2 * cfg.num_kv_heads, size), heads_axes)
    else:
      self.query = matrix(cfg, rngs, (width, cfg.num_heads, size), heads_axes, produced=2)
      self.key = matrix(cfg, rngs, kv_shape, kv_axes, produced=2)
      self.value = matrix(cfg, rngs, kv_shape, kv_axes, produced=2)
    self.out = matrix(cfg, rngs, (cfg.num_heads, size, width), ("heads", "head_dim", "embed"),
                      down_std(cfg))
    if cfg.qkv_bias:
      self.query_bias = zeros((cfg.num_heads, size), ("heads", "head_dim"))
      self.key_bias = zeros((cfg.num_kv_heads, size), ("kv_heads", "head_dim"))
      self.value_bias = zeros((cfg.num_kv_heads, size), ("kv_heads", "head_dim"))
    if cfg.out_bias:
      self.out_bias = zeros((width,), ("embed",))
    if cfg.qk_norm:
      self.query_norm = head_norm(cfg, cfg.num_heads, "heads")
      self.key_norm = head_norm(cfg, cfg.num_kv_heads, "kv_heads")

  def __call__(self, x, positions, visible, layer_cache, index, constrain):
    """Returns (output [R, S, D], the layer's keys and values after this call).

    Args:
      x: [R, S, D].
      positions: [R, S] int32.
      visible: with a KVCache, [R, S, T] bool as in `attend`; with a RowCache,
        live_attention.LiveRows; without one, row_attention.Rows.
      layer_cache: (keys, values) of this layer, with a kv_cache.Prefix as third entry where prompts
        are shared; None without a cache.
      index: scalar int32, the slot of a KVCache to write first; else None.
      constrain: lays an activation out by its logical axes.
    """
    queries, keys, values = self._project(x, constrain)
    if self.cfg.qk_norm:
      queries, keys = self.query_norm(queries), self.key_norm(keys)
    queries, keys = self._rotated(queries, keys, positions)
    if self.cfg.score_width is not None:  # what attends divides by the root of head_dim
      queries = queries * (self.cfg.head_dim / self.cfg.score_width) ** 0.5
    # Where tokens are divided over devices, they are so up to here, and the heads are from here on.
    queries, keys, values = (constrain(x, ("rows", "length", "heads", "head_dim"))
                             for x in (queries, keys, values))
    queries = constrain(queries, ("rows", None, "attending_heads", "head_dim"))
    first = positions - self.window + 1 if self.window else None
    if isinstance(visible, live_attention.LiveRows):
      out, new_cache = live_attention.attend(queries, keys, values, layer_cache, visible, constrain,
                                             first)
    else:
      out, new_cache = self._attend((queries, keys, values), visible, layer_cache, index, constrain,
                                    first)
    change = multiply(out.reshape(*x.shape[:-1], -1), self.out, constrain)
    if self.cfg.out_bias:
      change = change + self.out_bias[...].astype(x.dtype)
    return change, new_cache

  def _rotated(self, queries, keys, positions):
    """Returns queries and keys with the rotary embedding of this layer."""
    cfg, base, scaling = self.cfg, self.cfg.rope_base, self.cfg.rope_scaling
    if not self.has_rope:
      return queries, keys
    if cfg.window_rope_base is not None and self.window:
      base, scaling = cfg.window_rope_base, RopeScalingConfig()
    frequency, factor = frequencies(cfg.head_dim, base, scaling), attention_factor(scaling)
    return tuple(rotate(x, positions, frequency, factor) for x in (queries, keys))

  def _attend(self, projections, visible, layer_cache, index, constrain, first):
    """Returns (outputs [R, S, H, d], keys and values), of full rows or with a KVCache; `first`
    [R, S] is the first position that a token attends to, None without a window.
    """
    queries, keys, values = projections
    keys, values = keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3)
    if layer_cache is not None:
      absent = visible.shape[-1] - layer_cache[0].shape[-1]  # slots of layers without a window
      visible = visible[..., absent:]
      keys, values = kv_cache.write(*layer_cache[:2], keys, values, index - absent)
    heads = ("rows", "attending_heads", None, None)
    keys, values = jax.tree.map(lambda x: constrain(x, heads), (keys, values))
    if layer_cache is None:
      out = attend_rows(queries, keys, values, visible, constrain)
      out = constrain(out, ("rows", "length", "heads", "head_dim"))
    elif len(layer_cache) == 2:
      out = attend(queries, keys, values, visible)
    else:
      out = attend_shared(queries, keys, values, visible, layer_cache[2], first)
    return out, (keys, values)

  def _project(self, x, constrain):
    """Returns queries [R, S, H, d], keys and values [R, S, K, d]."""
    cfg = self.cfg

    def project(matrix):
      return multiply(x, matrix, constrain).reshape(*x.shape[:-1], -1, cfg.head_dim)

    if kv_cache.is_fused(cfg):
      bounds = (cfg.num_heads, cfg.num_heads + cfg.num_kv_heads)
      outputs = jnp.split(project(self.fused), bounds, axis=-2)
    else:
      outputs = [project(matrix) for matrix in (self.query, self.key, self.value)]
    if not cfg.qkv_bias:
      return outputs
    biases = self.query_bias, self.key_bias, self.value_bias
    return [y + bias[...].astype(x.dtype) for y, bias in zip(outputs, biases, strict=True)]


class MLP(nnx.Module):
  """down(activation(gate(x)) * up(x)), which is SwiGLU with `silu`.

  Source: arXiv 2002.05202.
  """

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    self.activation, self.is_fused = cfg.activation, kv_cache.is_fused(cfg)
    if self.is_fused:
      self.fused = weight(rngs, (cfg.width, 2, cfg.mlp_width), ("embed", None, "mlp"))
    else:
      self.gate = matrix(cfg, rngs, (cfg.width, cfg.mlp_width), ("embed", "mlp"))
      self.up = matrix(cfg, rngs, (cfg.width, cfg.mlp_width), ("embed", "mlp"))
    self.down = matrix(cfg, rngs, (cfg.mlp_width, cfg.width), ("mlp", "embed"), down_std(cfg))

  def __call__(self, x, constrain):
    activation = ACTIVATIONS[self.activation]
    if self.is_fused:
      both = multiply(x, self.fused, constrain)
      gate, up = jnp.split(both, 2, axis=-1)
    else:
      gate, up = multiply(x, self.gate, constrain), multiply(x, self.up, constrain)
    inner = activation(gate) * up
    return multiply(constrain(inner, ("rows", "length", "mlp")), self.down, constrain)
