"""Decoder of the shapes that models/families names.

Its blocks have attention and then a gated MLP or experts. The modules are Flax NNX; other
packages use `Model`, pure functions over a nested dict of parameters. The same block serves
training, prefill and decode: positions and segments are explicit, and a cache, where given,
supplies the keys and values of earlier tokens.

Shapes: R rows, S tokens per row, D width, V vocabulary, N layers, k experts per token.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import attention, kv_cache, live_attention, row_attention
from jaxrl_llm.models.kv_cache import KVCache
from jaxrl_llm.models.layers import MLP, Attention, weight, width_norm, zeros
from jaxrl_llm.models.mtp import MtpModule
from jaxrl_llm.models.row_cache import RowCache

Constrain = Callable[[Array, tuple], Array]
BLOCK_INPUT = "block_input"
# Activations saved for the backward pass instead of recomputed, by `ModelConfig.remat`.
POLICIES = {
    "full": None,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(attention.RESIDUALS)),
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=[BLOCK_INPUT],
        offload_src="device", offload_dst="pinned_host"),
}


def unconstrained(x: Array, axes: tuple) -> Array:
  """Returns `x` itself: on a single device activations need no layout."""
  del axes
  return x


class Block(nnx.Module):
  """x + attention(norm(x)), and then x + mlp(norm(x)); or with the norms after (OLMo 2), as in
  x + norm(attention(x)), or with both (Gemma 3).
  """

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, layer: int = 0):
    self.norms = cfg.norms
    if cfg.norms != "after":
      self.attention_norm = width_norm(cfg)
    self.attention = Attention(cfg, rngs, layer)
    if cfg.norms != "before":
      self.attention_out_norm, self.mlp_out_norm = width_norm(cfg), width_norm(cfg)
    if cfg.norms != "after":
      self.mlp_norm = width_norm(cfg)
    experts = cfg.num_experts and layer not in cfg.dense_layers
    if experts:
      from jaxrl_llm.models.moe import MoE
    self.mlp = MoE(cfg, rngs) if experts else MLP(cfg, rngs)

  def __call__(self, x, positions, visible, layer_cache, index, constrain, replayed=None):
    """Returns (x [R, S, D], (the layer's keys and values, routing [R, S, k] or None without
    experts)).

    Arguments as `Attention.__call__`, and `replayed` as `MoE.__call__`.
    """
    inputs = x if self.norms == "after" else self.attention_norm(x)
    change, layer_cache = self.attention(inputs, positions, visible, layer_cache, index, constrain)
    change = change if self.norms == "before" else self.attention_out_norm(change)
    x = constrain(x + change, ("rows", "length", "embed_activation"))
    inputs, routing = x if self.norms == "after" else self.mlp_norm(x), None
    if isinstance(self.mlp, MLP):
      change = self.mlp(inputs, constrain)
    else:
      change, routing = self.mlp(inputs, constrain, replayed)
    change = change if self.norms == "before" else self.mlp_out_norm(change)
    return constrain(x + change, ("rows", "length", "embed_activation")), (layer_cache, routing)


class Places(NamedTuple):
  """Positions and segments of the tokens in the network's rows.

  Attributes:
    positions, segments: [R, S] int32, in a row of the batch, and which one; 0 is padding.
    packed: whether a row of the network holds several of the batch.
    shared: as in `Model.hidden`; None where nothing is shared.
    replayed: as in `Model.hidden`.
  """

  positions: Array
  segments: Array
  packed: bool
  shared: Array | None
  replayed: Array | None = None


class Transformer(nnx.Module):
  """Embedding, blocks, final norm; with `scan_layers` the blocks are one stacked block."""

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
    self.cfg = cfg
    self.embedding = weight(rngs, (cfg.vocab_size, cfg.width), ("vocab", "embed"))
    self.final_norm = width_norm(cfg)
    if not cfg.tie_head:
      self.head = weight(rngs, (cfg.width, cfg.vocab_size), ("embed", "vocab"))
    if cfg.value_head:
      self.value_head = zeros((cfg.width,), ("embed",))
    if cfg.scan_layers:
      self.blocks = nnx.vmap(functools.partial(Block, cfg))(rngs.split(cfg.num_layers))
    else:
      self.blocks = nnx.List([Block(cfg, rngs, i) for i in range(cfg.num_layers)])
    if cfg.mtp:  # last, so that the other parameters begin as they do without it
      self.mtp = MtpModule(cfg, rngs, Block(cfg, rngs, cfg.num_layers - 1))

  def __call__(self, inputs, places: Places, cache, constrain):
    """As `Model.hidden_and_routing`."""
    positions, segments = places.positions, places.segments
    x = self.embedded(inputs, constrain)
    index = layers = None
    if cache is None:
      visible = self.visible(places, constrain)
    else:
      layers = (cache.keys, cache.values) + (() if cache.prefix is None else (cache.prefix,))
    if isinstance(cache, RowCache):
      visible = {w: live_attention.live_rows(cache.length, cache.keys[0], constrain, w)
                 for w in self._windows()}
    elif cache is not None:
      index, cache = cache.index, kv_cache.record(cache, positions, segments)
      distance = positions[..., None] - cache.positions[:, None]
      same_segment = cache.segments[:, None] == segments[..., None]
      earlier = (distance >= 0) & same_segment & (segments[..., None] > 0)
      visible = {w: earlier & (distance < w) if w else earlier for w in self._windows()}
    run = self._scanned if self.cfg.scan_layers else self._unrolled
    x, (layers, routing) = run(x, (positions, visible, index, places.replayed), layers, constrain)
    if cache is not None:
      cache = cache.replace(keys=layers[0], values=layers[1])
    return self.final_norm(x), cache, routing

  def embedded(self, inputs, constrain):
    """Returns what the first block reads of `inputs`, ids or embeddings."""
    dtype = jnp.dtype(self.cfg.compute_dtype)
    x = self.embedding[...][inputs] if jnp.issubdtype(inputs.dtype, jnp.integer) else inputs
    x = x.astype(dtype)
    if self.cfg.embedding_scale:
      x = x * jnp.asarray(self.cfg.width**0.5, dtype)
    return _laid_out(x, constrain)

  def ahead(self, hidden, tokens, places: Places, constrain, detached):
    """As `Model.ahead`, without the head."""
    table = self.embedding[...]
    if detached:
      hidden, table = lax.stop_gradient((hidden, table))
    following = table[jnp.roll(tokens, -1, 1)].astype(jnp.dtype(self.cfg.compute_dtype))
    x = self.mtp.join(hidden, _laid_out(following, constrain), constrain)
    graph, state = nnx.split(self.mtp.block)
    visible = self.visible(places, constrain)[kv_cache.windows(self.cfg)[-1]]
    x, _ = _rematerialised(self.cfg, graph, constrain)(state, x, places.positions, visible, None,
                                                          None)
    return self.mtp.norm(x)

  def _windows(self) -> set[int]:
    """Returns the windows that layers have, 0 where one has none."""
    return set(kv_cache.windows(self.cfg))

  def visible(self, places: Places, constrain):
    """Returns what the tokens of full rows attend to, by the window of a layer."""
    return {window: row_attention.rows(places.segments, self.cfg, constrain, packed=places.packed,
                                       shared=places.shared, positions=places.positions,
                                       window=window)
            for window in self._windows()}

  def _unrolled(self, x, attended, layers, constrain):
    positions, visible, index, replayed = attended
    keys, values, routing = [], [], []
    windows = kv_cache.windows(self.cfg)
    for i, block in enumerate(self.blocks):
      graph, state = nnx.split(block)
      layer = None if layers is None else tuple(entry[i] for entry in layers)
      run = functools.partial(_block, self.cfg, graph, constrain)
      experts = None if replayed is None or isinstance(block.mlp, MLP) else replayed[len(routing)]
      x, ((k, v), used) = run(state, x, positions, visible[windows[i]], layer, index, experts)
      keys.append(k)
      values.append(v)
      routing += [] if used is None else [used]
    return x, ((tuple(keys), tuple(values)), jnp.stack(routing) if self.cfg.num_experts else None)

  def _scanned(self, x, attended, layers, constrain):
    positions, visible, index, replayed = attended
    visible = visible[kv_cache.windows(self.cfg)[0]]
    graph, state = nnx.split(self.blocks)
    run = _rematerialised(self.cfg, graph, constrain, scanned=True)

    def body(x, layer):
      state, cached, experts = layer
      x, (new, routing) = run(state, x, positions, visible, cached, index, experts)
      return x, (None if cached is None else new, routing)

    return lax.scan(body, x, (state, layers, replayed))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _block(cfg: ModelConfig, graph, constrain, *arguments):
  """Calls a block; those of equal graphs are traced and lowered once, not once a layer."""
  return _rematerialised(cfg, graph, constrain)(*arguments)


def _laid_out(x, constrain):
  """Returns embedded tokens [R, S, D] as the blocks take them."""
  # In two steps, because no single exchange leads from divided embeddings to divided tokens.
  x = constrain(x, ("rows", None, "embed_of_tokens"))
  return constrain(x, ("rows", "length", "embed_activation"))


def _rematerialised(cfg: ModelConfig, graph, constrain, scanned: bool = False):
  """Returns the block as a function of its state, with the rematerialisation that `cfg.remat`
  names.

  `full` recomputes the entire block in the backward pass; `dots` keeps the products with weights
  and what the backward pass of splash reads, and recomputes the rest; `offload` is `full` with the
  block's input in the host's memory meanwhile.
  """

  def run(state, x, positions, visible, layer, index, replayed=None):
    x = checkpoint_name(x, BLOCK_INPUT)
    return nnx.merge(graph, state)(x, positions, visible, layer, index, constrain, replayed)

  if cfg.remat == "none":
    return run
  # A scan's two loops share nothing, and barriers between them would copy what is kept.
  return jax.checkpoint(run, policy=POLICIES[cfg.remat], prevent_cse=not scanned)


@dataclasses.dataclass(frozen=True)
class Model:
  """The policy network as pure functions over params, a nested dict of arrays.

  A Model is hashable, so that it can be a static argument of jitted functions.

  Attributes:
    config: shapes.
    constrain: lays an activation out by its logical axes (parallel.Layout), or leaves it as it is.
    origin: the checkpoint directory that the shapes were read from, or None. An export copies what
      the shapes do not say from there. It is ignored when two models are compared.
    packed: whether rows may hold several segments. If not, each row is one segment from its first
      column on, which more kernels of attention serve.
    detached: whether the head that predicts two tokens ahead leaves embedding, trunk and output
      head without gradient.
  """

  config: ModelConfig
  constrain: Constrain = unconstrained
  origin: str | None = dataclasses.field(default=None, compare=False)
  packed: bool = True
  detached: bool = False

  @property
  def of_single_segments(self) -> "Model":
    """The same network, for rows of one segment each."""
    return dataclasses.replace(self, packed=False)

  def init(self, key: Array):
    """Returns random f32 parameters; the key is consumed."""
    return nnx.to_pure_dict(nnx.state(Transformer(self.config, nnx.Rngs(params=key)), nnx.Param))

  def shapes(self):
    """As `init`, with a jax.ShapeDtypeStruct at each leaf; no array is made."""
    return jax.tree.map(lambda leaf: leaf, _shapes(self.config))  # a tree of the caller's

  def hidden(self, params, inputs: Array, positions: Int[Array, "R S"],
             segments: Int[Array, "R S"], *, cache: KVCache | RowCache | None = None,
             shared: Int[Array, "R S"] | None = None,
             ) -> tuple[Float[Array, "R S D"], KVCache | RowCache | None]:
    """Returns (final hidden states [R, S, D] in the compute dtype, the cache with these tokens
    entered).

    Args:
      params: from `init`, or of the same shapes in another float dtype.
      inputs: ids [R, S] int, or embeddings [R, S, D] float.
      positions: [R, S] int, position of each token in its segment, rising along the row. A token
        sees the positions up to its own in its own segment.
      segments: [R, S] int; 0 marks padding, which no token sees.
      cache: slots to write these tokens to and to read earlier ones from; None where `inputs` is
        all there is. A RowCache takes one token of each row.
      shared: an additional earlier segment of the row that each token attends to, -1: none; None:
        no token does. Not with a cache.
    """
    return self.hidden_and_routing(params, inputs, positions, segments, cache=cache,
                                   shared=shared)[:2]

  def hidden_and_routing(self, params, inputs: Array, positions: Int[Array, "R S"],
                         segments: Int[Array, "R S"], *, cache: KVCache | RowCache | None = None,
                         shared: Int[Array, "R S"] | None = None,
                         replayed: Int[Array, "N R S k"] | None = None):
    """Returns `hidden`, and the experts that each layer's router would send each token to.

    Args:
      replayed: such experts, to take in place of the most likely ones; -1 or None: these.

    Returns:
      (hidden, cache, routing [N, R, S, k] int32 of the layers with experts, or None without).
    """
    places = Places(positions, segments, self.packed, shared, replayed)
    return self.network(params)(inputs, places, cache, self.constrain)

  def network(self, params) -> Transformer:
    """Returns the modules with these parameters."""
    graph, axes_state = _structure(self.config)
    state = jax.tree.map(lambda leaf: leaf, axes_state)  # a copy: the cached state stays abstract
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state)

  def values(self, params, hidden: Float[Array, "R S D"]) -> Float[Array, "R S"]:
    """Returns the value of the state after each token, z = hidden . value_head in f32, 0 before
    training; with `value_bounded` 1/2 + atan(z) / pi, whose tails still have a gradient.

    Source of the bound: BPCO, arXiv 2608.23566.

    Raises:
      ValueError: the model has no value head.
    """
    if not self.config.value_head:
      raise ValueError("the model has no value head. Fix: ModelConfig(value_head=True); a run with "
                       "a critic sets it by itself.")
    values = hidden.astype(jnp.float32) @ params["value_head"].astype(jnp.float32)
    return 0.5 + jnp.arctan(values) / jnp.pi if self.config.value_bounded else values

  def ahead(self, params, hidden: Float[Array, "R S D"], tokens: Int[Array, "R S"],
            positions: Int[Array, "R S"], segments: Int[Array, "R S"],
            ) -> tuple[Float[Array, "R S D"], Float[Array, "D V"]]:
    """Returns (states [R, S, D] of which the logits at column t predict token t + 2, the head to
    use).

    The last two columns of a segment predict nothing: what they hold means nothing, and no earlier
    column sees it. Gradients flow into the trunk unless `detached`.

    Args:
      params, positions, segments: as in `hidden`; no segment may see another one.
      hidden: what `hidden` returned for these tokens.
      tokens: [R, S] int.

    Raises:
      ValueError: the model has no such module.
    """
    if not self.config.mtp:
      raise ValueError("the model has no module that predicts two tokens ahead. Fix: "
                       "ModelConfig(mtp=True); a run with a loss term of it sets it by itself.")
    places = Places(positions, segments, self.packed, None)
    states = self.network(params).ahead(hidden, tokens, places, self.constrain, self.detached)
    head = self.head(params)
    return states, lax.stop_gradient(head) if self.detached else head

  def embedding(self, params) -> Float[Array, "V D"]:
    """Returns the embedding table: `hidden` gives the same result for ids and for embedding[ids].
    """
    return params["embedding"]

  def head(self, params) -> Float[Array, "D V"]:
    """Returns the output projection [D, V]; with a tied head, the transposed embedding."""
    return params["embedding"].T if self.config.tie_head else params["head"]

  def logical_axes(self):
    """Returns a pytree like params with a tuple of axis names at each leaf, for `parallel`."""
    _, state = _structure(self.config)
    flat = {}
    for path, variable in nnx.to_flat_state(state):
      stacked = self.config.scan_layers and path[0] == "blocks"
      flat[path] = ("layers", *variable.axes) if stacked else variable.axes
    return nnx.traversals.unflatten_mapping(flat)


@functools.cache
def _shapes(cfg: ModelConfig):
  """See `Model.shapes`, which a start asks for some twenty times."""
  return nnx.to_pure_dict(nnx.filter_state(_structure(cfg)[1], nnx.Param))


@functools.cache
def _structure(cfg: ModelConfig):
  """Returns (graph definition, abstract parameter state) of the network; no array is allocated."""
  abstract = nnx.eval_shape(lambda: Transformer(cfg, nnx.Rngs(params=0)))
  return nnx.split(abstract)
