"""Norm, attention and dense MLP of a decoder block.

Shapes: R rows, S tokens of each, T slots attended to, D width, H heads, K kv-heads, d width of a
head.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import kv_cache
from jaxrl_llm.models.rope import frequencies, rotate

INIT_STD = 0.02
# Matrices of a block, by the last key of their path: (contracted axes, produced axes). Axes before
# them are batches: layers of a scanned model, experts.
MATRICES = {"query": (1, 2), "key": (1, 2), "value": (1, 2), "out": (2, 1), "gate": (1, 1),
            "up": (1, 1), "down": (1, 1)}
CAUSAL_BLOCKS, LEAST_BLOCK = 4, 96  # blocks of `attend_earlier` at most, and tokens of one at least


def weight(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...],
           std: float = INIT_STD) -> nnx.Param:
  """Normal-initialised f32 parameter that carries its logical axes."""
  return nnx.Param(std * jax.random.normal(rngs.params(), shape, jnp.float32), axes=axes)


def zeros(shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param:
  """f32 parameter that starts at zero and carries its logical axes."""
  return nnx.Param(jnp.zeros(shape, jnp.float32), axes=axes)


def down_std(cfg: ModelConfig) -> float:
  """Standard deviation of the projections back into the residual stream, two of which each block
  adds.
  """
  return INIT_STD / (2 * cfg.num_layers) ** 0.5


@jax.custom_vjp
def product(x, matrix):
  """x @ matrix for x [R, S, D] and [D, F], with a backward pass that transposes the narrower
  operand.

  The matrix's gradient is x^T g where D <= F, else (g^T x)^T: on a CPU the copy that a transpose
  takes costs more than its share of the product, and is made of the wider operand otherwise.
  """
  return x @ matrix


def _product_forward(x, matrix):
  return x @ matrix, (x, matrix)


def _product_backward(saved, g):
  x, matrix = saved
  rows, ahead = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
  d_matrix = rows.T @ ahead if matrix.shape[0] <= matrix.shape[1] else (ahead.T @ rows).T
  return (g @ matrix.T).reshape(x.shape), d_matrix


product.defvjp(_product_forward, _product_backward)


class RMSNorm(nnx.Module):
  """x / sqrt(mean(x^2) + epsilon) * scale over the last axis, in f32."""

  def __init__(self, size: int, axis: str, epsilon: float):
    self.scale = nnx.Param(jnp.ones(size, jnp.float32), axes=(axis,))
    self.epsilon = epsilon

  def __call__(self, x):
    full = x.astype(jnp.float32)
    full = full * lax.rsqrt(jnp.mean(jnp.square(full), -1, keepdims=True) + self.epsilon)
    return (full * self.scale[...]).astype(x.dtype)


def attend(queries, keys, values, visible):
  """Softmax attention in f32, each kv-head serving H / K query heads.

  Args:
    queries: [R, S, H, d];  keys: [R, K, d, T];  values: [R, K, T, d];  visible: [R, S, T] bool.
      Keys and values may come from a cache in another dtype than the queries'; the products are
      then in the wider of the two.

  Returns:
    [R, S, H, d] in the queries' dtype. A token that sees nothing (padding) gets the mean of the
    values.
  """
  scores = _scores(queries, keys, visible)
  weights = jax.nn.softmax(scores, -1).astype(_wider(queries, values))
  mixed = _mix(weights, values).astype(queries.dtype)
  return mixed.transpose(0, 3, 1, 2, 4).reshape(queries.shape)


def attend_earlier(queries, keys, values, visible):
  """`attend` where no token sees a later column: each block of queries goes over the columns up to
  its own end alone.

  With n blocks, (n + 1) / 2n of all scores are computed. The results are those of `attend` up to
  rounding.

  Args:
    queries, keys, values, visible: as in `attend`, with T = S.
  """
  length = queries.shape[1]
  blocks = min(CAUSAL_BLOCKS, max(1, length // LEAST_BLOCK))
  ends = [length * (i + 1) // blocks for i in range(blocks)]
  parts = [attend(queries[:, a:b], keys[..., :b], values[:, :, :b], visible[:, a:b, :b])
           for a, b in zip([0, *ends], ends, strict=False)]
  return jnp.concatenate(parts, 1)


def attend_shared(queries, keys, values, visible, prefix: kv_cache.Prefix):
  """`attend` over a row's own slots and over a prompt that it shares, whose keys are read once for
  all its rows.

  Each part gives its largest score m_p, z_p = sum exp(s - m_p) and y_p = sum exp(s - m_p) v; with m
  = max m_p the output is sum_p exp(m_p - m) y_p / sum_p exp(m_p - m) z_p.

  Args:
    queries, keys, values, visible: as in `attend`.
  """
  length = queries.shape[1]
  prompts, group = prefix.rows.shape
  own = _partial(queries, keys, values, visible)
  grouped = queries[prefix.rows].reshape(prompts, group * length, *queries.shape[2:])
  seen = jnp.broadcast_to(prefix.visible[:, None],
                          (prompts, group * length, prefix.visible.shape[1]))
  shared = _partial(grouped, prefix.keys, prefix.values, seen)
  back = lambda x: x.reshape(*x.shape[:3], group, length, -1)[prefix.prompt, :, :, prefix.lane]
  parts = (own, tuple(map(back, shared)))
  top = jnp.maximum(parts[0][0], parts[1][0])
  scaled = [jnp.exp(part[0] - top) for part in parts]
  total = sum(scale * part[1] for scale, part in zip(scaled, parts, strict=True))
  mixed = sum(scale * part[2] for scale, part in zip(scaled, parts, strict=True)) / total
  return mixed.astype(queries.dtype).transpose(0, 3, 1, 2, 4).reshape(queries.shape)


def _partial(queries, keys, values, visible):
  """(largest score, sum of exp, values mixed by exp) over one part of what is attended to, each [R,
  K, H/K, S, ...].
  """
  scores = _scores(queries, keys, visible)
  top = jnp.max(scores, -1, keepdims=True)
  weights = jnp.exp(scores - top)
  total = jnp.sum(weights, -1, keepdims=True)
  return top, total, _mix(weights.astype(_wider(queries, values)), values, jnp.float32)


def _wider(queries, values):
  return jnp.promote_types(queries.dtype, values.dtype)


def _scores(queries, keys, visible):
  """[R, K, H/K, S, T] f32 products of queries and keys; the least number where nothing is to be
  seen.
  """
  rows, length, _, size = queries.shape
  kv_heads, slots = keys.shape[1], keys.shape[3]
  # The query heads of a kv-head are stacked along the length, so that both products are plain
  # batched ones.
  stacked = (queries * size**-0.5).reshape(rows, length, kv_heads, -1,
                                           size).transpose(0, 2, 3, 1, 4)
  stacked = stacked.reshape(rows, kv_heads, -1, size)
  scores = jnp.einsum("rknd,rkdt->rknt", stacked, keys, preferred_element_type=jnp.float32)
  scores = scores.reshape(rows, kv_heads, -1, length, slots)
  return jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)


def _mix(weights, values, dtype=None):
  """[R, K, H/K, S, d]: values [R, K, T, d] by weights [R, K, H/K, S, T]."""
  rows, kv_heads, per, length, slots = weights.shape
  mixed = jnp.einsum("rknt,rktd->rknd", weights.reshape(rows, kv_heads, -1, slots), values,
                     preferred_element_type=dtype)
  return mixed.reshape(rows, kv_heads, per, length, -1)


class Attention(nnx.Module):
  """Grouped-query attention with rotary positions; biases (Qwen2) and query and key norms (Qwen3)
  by config.
  """

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    width, size = cfg.width, cfg.head_dim
    self.cfg = cfg
    self.query = weight(rngs, (width, cfg.num_heads, size), ("embed", "heads", "head_dim"))
    self.key = weight(rngs, (width, cfg.num_kv_heads, size), ("embed", "kv_heads", "head_dim"))
    self.value = weight(rngs, (width, cfg.num_kv_heads, size), ("embed", "kv_heads", "head_dim"))
    self.out = weight(rngs, (cfg.num_heads, size, width), ("heads", "head_dim", "embed"),
                      down_std(cfg))
    if cfg.qkv_bias:
      self.query_bias = zeros((cfg.num_heads, size), ("heads", "head_dim"))
      self.key_bias = zeros((cfg.num_kv_heads, size), ("kv_heads", "head_dim"))
      self.value_bias = zeros((cfg.num_kv_heads, size), ("kv_heads", "head_dim"))
    if cfg.qk_norm:
      self.query_norm = RMSNorm(size, "head_dim", cfg.norm_epsilon)
      self.key_norm = RMSNorm(size, "head_dim", cfg.norm_epsilon)

  def __call__(self, x, positions, visible, layer_cache, index, constrain):
    """Returns (output [R, S, D], the layer's keys and values after this call)."""
    queries, keys, values = self._project(x)
    if self.cfg.qk_norm:
      queries, keys = self.query_norm(queries), self.key_norm(keys)
    frequency = frequencies(self.cfg.head_dim, self.cfg.rope_base, self.cfg.rope_scaling)
    queries = rotate(queries, positions, frequency)
    keys = rotate(keys, positions, frequency).transpose(0, 2, 3, 1)
    values = values.transpose(0, 2, 1, 3)
    queries = constrain(queries, ("rows", "length", "heads", "head_dim"))
    if layer_cache is not None:
      keys, values = kv_cache.write(*layer_cache[:2], keys, values, index)
    prefix = layer_cache[2:] if layer_cache is not None else ()
    core = attend_shared if prefix else attend if layer_cache is not None else attend_earlier
    mixed = core(queries, keys, values, visible, *prefix)
    out = self.out[...].astype(x.dtype).reshape(-1, x.shape[-1])
    return product(mixed.reshape(*x.shape[:-1], -1), out), (keys, values)

  def _project(self, x):
    """Queries [R, S, H, d], keys and values [R, S, K, d]."""

    def project(matrix, bias):
      # products with matrices are faster on CPU
      flat = matrix[...].astype(x.dtype).reshape(x.shape[-1], -1)
      y = product(x, flat).reshape(*x.shape[:-1], -1, self.cfg.head_dim)
      return y if bias is None else y + bias[...].astype(x.dtype)

    biases = (self.query_bias, self.key_bias, self.value_bias) if self.cfg.qkv_bias else (None,) * 3
    return tuple(map(project, (self.query, self.key, self.value), biases))


class MLP(nnx.Module):
  """SwiGLU: down(silu(gate(x)) * up(x))."""

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    self.gate = weight(rngs, (cfg.width, cfg.mlp_width), ("embed", "mlp"))
    self.up = weight(rngs, (cfg.width, cfg.mlp_width), ("embed", "mlp"))
    self.down = weight(rngs, (cfg.mlp_width, cfg.width), ("mlp", "embed"), down_std(cfg))

  def __call__(self, x, constrain):
    cast = lambda matrix: matrix[...].astype(x.dtype)
    inner = jax.nn.silu(product(x, cast(self.gate))) * product(x, cast(self.up))
    return product(constrain(inner, ("rows", "length", "mlp")), cast(self.down))
