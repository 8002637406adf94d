"""Decoder of the Qwen2, Qwen3, Llama 3 and Qwen3-MoE shapes: pre-norm blocks of attention and
SwiGLU or experts.

Modules are Flax NNX; everybody outside uses `Model`, pure functions over a nested dict of
parameters. One block serves
training, prefill and decode: positions and segments are explicit, and a cache, where given,
  supplies the keys and
values of earlier tokens.

Shapes: R rows, S tokens of each, D width, N layers, k experts per token.
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
from jaxrl_llm.models.layers import MLP, Attention, RMSNorm, weight, zeros
from jaxrl_llm.models.moe import MoE

Constrain = Callable[[Array, tuple], Array]


def unconstrained(x: Array, axes: tuple) -> Array:
  """Activation layout on a single device: none."""
  del axes
  return x


class Block(nnx.Module):

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    self.attention_norm = RMSNorm(cfg.width, "embed", cfg.norm_epsilon)
    self.attention = Attention(cfg, rngs)
    self.mlp_norm = RMSNorm(cfg.width, "embed", cfg.norm_epsilon)
    self.mlp = MoE(cfg, rngs) if cfg.num_experts else MLP(cfg, rngs)

  def __call__(self, x, positions, visible, layer_cache, index, routing, constrain):
    mixed, layer_cache = self.attention(self.attention_norm(x), positions, visible, layer_cache,
                                        index, constrain)
    x = constrain(x + mixed, ("rows", "length", "embed_activation"))
    if isinstance(self.mlp, MoE):
      change, routing = self.mlp(self.mlp_norm(x), constrain, routing)
    else:
      change = self.mlp(self.mlp_norm(x), constrain)
    return constrain(x + change, ("rows", "length", "embed_activation")), (layer_cache, routing)


class Transformer(nnx.Module):
  """Embedding, blocks, final norm. Blocks are a list, or one stacked block where `scan_layers`."""

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    self.cfg = cfg
    self.embedding = weight(rngs, (cfg.vocab_size, cfg.width), ("vocab", "embed"))
    self.final_norm = RMSNorm(cfg.width, "embed", cfg.norm_epsilon)
    if not cfg.tie_head:
      self.head = weight(rngs, (cfg.width, cfg.vocab_size), ("embed", "vocab"))
    if cfg.value_head:
      self.value_head = zeros((cfg.width,), ("embed",))
    if cfg.scan_layers:
      self.blocks = nnx.vmap(lambda r: Block(cfg, r))(rngs.split(cfg.num_layers))
    else:
      self.blocks = nnx.List([Block(cfg, rngs) for _ in range(cfg.num_layers)])

  def __call__(self, inputs, positions, segments, cache, routing, constrain):
    dtype = jnp.dtype(self.cfg.compute_dtype)
    x = self.embedding[...][inputs] if jnp.issubdtype(inputs.dtype, jnp.integer) else inputs
    x = constrain(x.astype(dtype), ("rows", "length", "embed_activation"))
    index = None
    seen = (positions, segments)
    if cache is not None:
      index, cache = cache.index, kv_cache.note(cache, positions, segments)
      seen = (cache.positions, cache.segments)
    visible = (seen[0][:, None] <= positions[..., None]) & (
        seen[1][:, None] == segments[..., None]) & (segments[..., None] > 0)
    run = self._scanned if self.cfg.scan_layers else self._unrolled
    layers = None if cache is None else (cache.keys, cache.values)
    if cache is not None and cache.prefix is not None:
      layers += (cache.prefix,)
    x, (layers, routing) = run(x, positions, visible, layers, index, routing, constrain)
    if cache is not None:
      cache = cache.replace(keys=layers[0], values=layers[1])
    return self.final_norm(x), cache, routing

  def _unrolled(self, x, positions, visible, layers, index, routing, constrain):
    keys, values, routed = [], [], []
    for i, block in enumerate(self.blocks):
      graph, state = nnx.split(block)
      layer = None if layers is None else tuple(part[i] for part in layers)
      given = None if routing is None else routing[i]
      x, ((k, v), used) = _rematerialised(self.cfg, graph, constrain)(state, x, positions, visible,
                                                                      layer, index, given)
      keys.append(k)
      values.append(v)
      routed.append(used)
    return x, ((tuple(keys), tuple(values)), jnp.stack(routed) if self.cfg.num_experts else None)

  def _scanned(self, x, positions, visible, layers, index, routing, constrain):
    graph, state = nnx.split(self.blocks)
    run = _rematerialised(self.cfg, graph, constrain)

    def body(x, layer):
      state, cached, given = layer
      x, (new, used) = run(state, x, positions, visible, cached, index, given)
      return x, (None if cached is None else new, used)

    return lax.scan(body, x, (state, layers, routing))


def _rematerialised(cfg: ModelConfig, graph, constrain):
  """The block as a function of its state; `dots` keeps products with weights and recomputes the
  rest.
  """

  def run(state, x, positions, visible, layer, index, routing):
    return nnx.merge(graph, state)(x, positions, visible, layer, index, routing, constrain)

  if cfg.remat == "none":
    return run
  keep = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if cfg.remat == "dots" else None
  return jax.checkpoint(run, policy=keep)


@dataclasses.dataclass(frozen=True)
class Model:
  """Pure functions over params, a nested dict of arrays. Hashable: a static argument of jitted
  functions.

  Attributes:
    config: shapes.
    constrain: lays an activation out by its logical axes (parallel.Layout), or leaves it alone.
    origin: the checkpoint directory that the shapes were read from, or None. An export takes from
      it what the shapes do not say. Two models that differ in it alone are equal.
  """

  config: ModelConfig
  constrain: Constrain = unconstrained
  origin: str | None = dataclasses.field(default=None, compare=False)

  def init(self, key: Array):
    """Random f32 parameters. The key is consumed."""
    return nnx.to_pure_dict(nnx.state(Transformer(self.config, nnx.Rngs(params=key)), nnx.Param))

  def hidden(
      self, params, inputs: Array, positions: Int[Array, "R S"], segments: Int[Array, "R S"], *,
      cache: KVCache | None = None,
      routing: Int[Array, "N R S k"] | None = None) -> tuple[Float[Array, "R S D"], KVCache | None]:
    """Final hidden states in the compute dtype, and the cache with these tokens entered.

    Args:
      params: from `init`, or of the same shapes in another float dtype.
      inputs: ids [R, S] or embeddings [R, S, D].
      positions: of each token in its segment, rising along the row; a token sees positions up to
        its own in its own segment.
      segments: 0 marks padding, which nothing sees.
      cache: slots that the tokens are written to and read from, or None to attend within `inputs`
        alone.
      routing: experts to send the tokens to, as `hidden_and_routing` returned them; None lets the
        router choose.

    Raises:
      ValueError: routing given to a model without experts.
    """
    return self.hidden_and_routing(params, inputs, positions, segments, cache=cache,
                                   routing=routing)[:2]

  def hidden_and_routing(self, params, inputs: Array, positions: Int[Array, "R S"],
                         segments: Int[Array, "R S"], *, cache: KVCache | None = None,
                         routing: Int[Array, "N R S k"] | None = None):
    """As `hidden`, with the experts that served: (hidden, cache, routing [N, R, S, k] int32, None
    without experts).
    """
    if routing is not None and not self.config.num_experts:
      raise ValueError(
          "routing was given, but model.num_experts = 0. Fix: pass routing to a model with experts "
          "only."
      )
    graph, axes_state = _structure(self.config)
    state = jax.tree.map(lambda leaf: leaf, axes_state)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state)(inputs, positions, segments, cache, routing, self.constrain)

  def values(self, params, hidden: Float[Array, "R S D"]) -> Float[Array, "R S"]:
    """hidden . value_head in f32: the value of the state after each token, 0 everywhere at first.

    Raises:
      ValueError: the model has no value head.
    """
    if not self.config.value_head:
      raise ValueError("the model has no value head. Fix: model.value_head=true.")
    return hidden.astype(jnp.float32) @ params["value_head"].astype(jnp.float32)

  def head(self, params) -> Float[Array, "D V"]:
    """The output projection; the transposed embedding where tied."""
    return params["embedding"].T if self.config.tie_head else params["head"]

  def logical_axes(self):
    """Pytree like params whose leaves are tuples of axis names, for parallel.py."""
    _, state = _structure(self.config)
    stacked = lambda path: self.config.scan_layers and path[0] == "blocks"
    flat = {
        path: (("layers",) if stacked(path) else ()) + variable.axes
        for path, variable in nnx.to_flat_state(state)
    }
    return nnx.traversals.unflatten_mapping(flat)


@functools.cache
def _structure(cfg: ModelConfig):
  """(graph definition, abstract parameter state) of the network; no array is made."""
  abstract = nnx.eval_shape(lambda: Transformer(cfg, nnx.Rngs(params=0)))
  return nnx.split(abstract)
