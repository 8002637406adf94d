"""Decoder of Qwen3 shape: RMSNorm, rotary positions, grouped-query attention with QK-norm, SwiGLU.

Modules are Flax NNX; everybody outside uses `Model`, pure functions over a nested dict of parameters. One block serves
training, prefill and decode: positions and segments are explicit, and a cache, where given, supplies the keys and
values of earlier tokens.

Shapes: R rows, S tokens of each, T slots attended to, D width, H heads, K kv-heads, N layers.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import kv_cache
from jaxrl_llm.models.kv_cache import KVCache

INIT_STD = 0.02
Constrain = Callable[[Array, tuple], Array]


def unconstrained(x: Array, axes: tuple) -> Array:
  """Activation layout on a single device: none."""
  del axes
  return x


def _weight(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], std: float = INIT_STD) -> nnx.Param:
  """Normal-initialised f32 parameter that carries its logical axes."""
  return nnx.Param(std * jax.random.normal(rngs.params(), shape, jnp.float32), axes=axes)


class RMSNorm(nnx.Module):
  """x / sqrt(mean(x^2) + epsilon) * scale over the last axis, in f32."""

  def __init__(self, size: int, axis: str, epsilon: float):
    self.scale = nnx.Param(jnp.ones(size, jnp.float32), axes=(axis,))
    self.epsilon = epsilon

  def __call__(self, x):
    full = x.astype(jnp.float32)
    full = full * lax.rsqrt(jnp.mean(jnp.square(full), -1, keepdims=True) + self.epsilon)
    return (full * self.scale[...]).astype(x.dtype)


def rotate(x: Float[Array, "R S H d"], positions: Int[Array, "R S"], base: float) -> Float[Array, "R S H d"]:
  """Rotary position embedding; the two halves of the head are a pair's components, as in Hugging Face's Qwen3."""
  half = x.shape[-1] // 2
  frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angle = positions[..., None, None].astype(jnp.float32) * frequency
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  first, second = jnp.split(x.astype(jnp.float32), 2, -1)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def attend(queries, keys, values, visible):
  """Softmax attention in f32, each kv-head serving H / K query heads.

  Args:
    queries: [R, S, H, d];  keys: [R, K, d, T];  values: [R, K, T, d];  visible: [R, S, T] bool.

  Returns:
    [R, S, H, d]. A token that sees nothing (padding) gets the mean of the values.
  """
  rows, length, heads, size = queries.shape
  kv_heads, slots = keys.shape[1], keys.shape[3]
  # The query heads of a kv-head are stacked along the length, so that both products are plain batched ones.
  stacked = (queries * size**-0.5).reshape(rows, length, kv_heads, -1, size).transpose(0, 2, 3, 1, 4)
  stacked = stacked.reshape(rows, kv_heads, -1, size)
  scores = jnp.einsum("rknd,rkdt->rknt", stacked, keys, preferred_element_type=jnp.float32)
  scores = scores.reshape(rows, kv_heads, -1, length, slots)
  scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
  weights = jax.nn.softmax(scores, -1).astype(values.dtype).reshape(rows, kv_heads, -1, slots)
  mixed = jnp.einsum("rknt,rktd->rknd", weights, values).reshape(rows, kv_heads, -1, length, size)
  return mixed.transpose(0, 3, 1, 2, 4).reshape(rows, length, heads, size)


class Attention(nnx.Module):

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    width, size = cfg.width, cfg.head_dim
    self.cfg = cfg
    self.query = _weight(rngs, (width, cfg.num_heads, size), ("embed", "heads", "head_dim"))
    self.key = _weight(rngs, (width, cfg.num_kv_heads, size), ("embed", "kv_heads", "head_dim"))
    self.value = _weight(rngs, (width, cfg.num_kv_heads, size), ("embed", "kv_heads", "head_dim"))
    out_std = INIT_STD / (2 * cfg.num_layers) ** 0.5
    self.out = _weight(rngs, (cfg.num_heads, size, width), ("heads", "head_dim", "embed"), out_std)
    self.query_norm = RMSNorm(size, "head_dim", cfg.norm_epsilon)
    self.key_norm = RMSNorm(size, "head_dim", cfg.norm_epsilon)

  def __call__(self, x, positions, visible, layer_cache, index, constrain):
    """Returns (output [R, S, D], the layer's keys and values after this call)."""
    flat = lambda weight, *shape: weight[...].astype(x.dtype).reshape(shape)  # products with matrices are faster on CPU
    project = lambda weight: (x @ flat(weight, x.shape[-1], -1)).reshape(*x.shape[:-1], -1, self.cfg.head_dim)
    queries = rotate(self.query_norm(project(self.query)), positions, self.cfg.rope_base)
    keys = rotate(self.key_norm(project(self.key)), positions, self.cfg.rope_base).transpose(0, 2, 3, 1)
    values = project(self.value).transpose(0, 2, 1, 3)
    queries = constrain(queries, ("rows", "length", "heads", "head_dim"))
    if layer_cache is not None:
      keys, values = kv_cache.write(*layer_cache, keys, values, index)
    mixed = attend(queries, keys, values, visible)
    return mixed.reshape(*x.shape[:-1], -1) @ flat(self.out, -1, x.shape[-1]), (keys, values)


class MLP(nnx.Module):

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    self.gate = _weight(rngs, (cfg.width, cfg.mlp_width), ("embed", "mlp"))
    self.up = _weight(rngs, (cfg.width, cfg.mlp_width), ("embed", "mlp"))
    self.down = _weight(rngs, (cfg.mlp_width, cfg.width), ("mlp", "embed"), INIT_STD / (2 * cfg.num_layers) ** 0.5)

  def __call__(self, x, constrain):
    cast = lambda weight: weight[...].astype(x.dtype)
    inner = jax.nn.silu(x @ cast(self.gate)) * (x @ cast(self.up))
    return constrain(inner, ("rows", "length", "mlp")) @ cast(self.down)


class Block(nnx.Module):

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    self.attention_norm = RMSNorm(cfg.width, "embed", cfg.norm_epsilon)
    self.attention = Attention(cfg, rngs)
    self.mlp_norm = RMSNorm(cfg.width, "embed", cfg.norm_epsilon)
    self.mlp = MLP(cfg, rngs)

  def __call__(self, x, positions, visible, layer_cache, index, constrain):
    mixed, layer_cache = self.attention(self.attention_norm(x), positions, visible, layer_cache, index, constrain)
    x = constrain(x + mixed, ("rows", "length", "embed_activation"))
    x = x + self.mlp(self.mlp_norm(x), constrain)
    return constrain(x, ("rows", "length", "embed_activation")), layer_cache


class Transformer(nnx.Module):
  """Embedding, blocks, final norm. Blocks are a list, or one stacked block where `scan_layers`."""

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    self.cfg = cfg
    self.embedding = _weight(rngs, (cfg.vocab_size, cfg.width), ("vocab", "embed"))
    self.final_norm = RMSNorm(cfg.width, "embed", cfg.norm_epsilon)
    if not cfg.tie_head:
      self.head = _weight(rngs, (cfg.width, cfg.vocab_size), ("embed", "vocab"))
    if cfg.scan_layers:
      self.blocks = nnx.vmap(lambda r: Block(cfg, r))(rngs.split(cfg.num_layers))
    else:
      self.blocks = nnx.List([Block(cfg, rngs) for _ in range(cfg.num_layers)])

  def __call__(self, inputs, positions, segments, cache, constrain):
    dtype = jnp.dtype(self.cfg.compute_dtype)
    x = self.embedding[...][inputs] if jnp.issubdtype(inputs.dtype, jnp.integer) else inputs
    x = constrain(x.astype(dtype), ("rows", "length", "embed_activation"))
    index = None
    seen = (positions, segments)
    if cache is not None:
      index, cache = cache.index, kv_cache.note(cache, positions, segments)
      seen = (cache.positions, cache.segments)
    visible = (seen[0][:, None] <= positions[..., None]) & (seen[1][:, None] == segments[..., None]) & (
        segments[..., None] > 0)
    run = self._scanned if self.cfg.scan_layers else self._unrolled
    layers = None if cache is None else (cache.keys, cache.values)
    x, layers = run(x, positions, visible, layers, index, constrain)
    if cache is not None:
      cache = cache.replace(keys=layers[0], values=layers[1])
    return self.final_norm(x), cache

  def _unrolled(self, x, positions, visible, layers, index, constrain):
    keys, values = [], []
    for i, block in enumerate(self.blocks):
      graph, state = nnx.split(block)
      layer = None if layers is None else (layers[0][i], layers[1][i])
      x, (k, v) = _rematerialised(self.cfg, graph, constrain)(state, x, positions, visible, layer, index)
      keys.append(k)
      values.append(v)
    return x, (tuple(keys), tuple(values))

  def _scanned(self, x, positions, visible, layers, index, constrain):
    graph, state = nnx.split(self.blocks)
    run = _rematerialised(self.cfg, graph, constrain)

    def body(x, layer):
      state, cached = layer
      x, new = run(state, x, positions, visible, cached, index)
      return x, None if cached is None else new

    return lax.scan(body, x, (state, layers))


def _rematerialised(cfg: ModelConfig, graph, constrain):
  """The block as a function of its state; `dots` keeps products with weights and recomputes the rest."""

  def run(state, x, positions, visible, layer, index):
    return nnx.merge(graph, state)(x, positions, visible, layer, index, constrain)

  if cfg.remat == "none":
    return run
  keep = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if cfg.remat == "dots" else None
  return jax.checkpoint(run, policy=keep)


@dataclasses.dataclass(frozen=True)
class Model:
  """Pure functions over params, a nested dict of f32 arrays. Hashable: a static argument of jitted functions.

  Attributes:
    config: shapes.
    constrain: lays an activation out by its logical axes (parallel.Layout), or leaves it alone.
  """

  config: ModelConfig
  constrain: Constrain = unconstrained

  def init(self, key: Array):
    """Random parameters. The key is consumed."""
    return nnx.to_pure_dict(nnx.state(Transformer(self.config, nnx.Rngs(params=key)), nnx.Param))

  def hidden(self, params, inputs: Array, positions: Int[Array, "R S"], segments: Int[Array, "R S"], *,
             cache: KVCache | None = None) -> tuple[Float[Array, "R S D"], KVCache | None]:
    """Final hidden states in the compute dtype, and the cache with these tokens entered.

    Args:
      params: from `init`.
      inputs: ids [R, S] or embeddings [R, S, D].
      positions: of each token in its segment; a token sees positions up to its own in its own segment.
      segments: 0 marks padding, which nothing sees.
      cache: slots that the tokens are written to and read from, or None to attend within `inputs` alone.
    """
    graph, axes_state = _structure(self.config)
    state = jax.tree.map(lambda leaf: leaf, axes_state)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state)(inputs, positions, segments, cache, self.constrain)

  def head(self, params) -> Float[Array, "D V"]:
    """The output projection; the transposed embedding where tied."""
    return params["embedding"].T if self.config.tie_head else params["head"]

  def logical_axes(self):
    """Pytree like params whose leaves are tuples of axis names, for parallel.py."""
    _, state = _structure(self.config)
    stacked = lambda path: self.config.scan_layers and path[0] == "blocks"
    flat = {path: (("layers",) if stacked(path) else ()) + variable.axes for path, variable in nnx.to_flat_state(state)}
    return nnx.traversals.unflatten_mapping(flat)


@functools.cache
def _structure(cfg: ModelConfig):
  """(graph definition, abstract parameter state) of the network; no array is made."""
  abstract = nnx.eval_shape(lambda: Transformer(cfg, nnx.Rngs(params=0)))
  return nnx.split(abstract)
