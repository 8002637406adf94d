"""The sampler's copy of the weights: in the compute dtype, with separate blocks, not divided over
fsdp, and on a GPU with fused matrices. It is made once per rollout, because a token step reads
every weight.
"""

import dataclasses
import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.models import Model, int8, kv_cache, mtp
from jaxrl_llm.models.row_attention import platform_of

# leaves that the network reads in f32, by their last key
FULL_PRECISION = ("scale", "router", "value_head")


def decode_model(model: Model) -> Model:
  """Returns the same network with separate blocks, without the module that predicts two ahead.

  A scan over stacked weights would copy them in every decode step. On a GPU each layer's matrices
  of queries, keys and values are one, and those of gate and up: XLA joins their products there, and
  would copy the matrices into one in every step.
  """
  config = dataclasses.replace(model.config, scan_layers=False, remat="none", mtp=False)
  if _fuses(model):
    config = kv_cache.decoding(config, fused=True)
  return dataclasses.replace(model, config=config)


def _fuses(model: Model) -> bool:
  """Returns whether the copy has fused matrices: not where they are divided over `tensor`, whose
  parts a fused one would mix, nor where they are int8.
  """
  mesh = getattr(model.constrain, "mesh", None)
  divided = mesh is not None and mesh.shape["tensor"] > 1
  stored = getattr(model.config, "quantization", int8.NONE) != int8.NONE
  return platform_of(model.constrain) == "gpu" and not divided and not stored


def _fused(block):
  """Returns a block's parameters with fused matrices."""
  attention, mlp = dict(block["attention"]), dict(block["mlp"])
  if "query" in attention:
    parts = [attention.pop(name) for name in ("query", "key", "value")]
    attention["fused"] = jnp.concatenate(parts, 1)
  if "gate" in mlp and "router" not in mlp:
    mlp["fused"] = jnp.stack([mlp.pop("gate"), mlp.pop("up")], 1)
  return {**block, "attention": attention, "mlp": mlp}


def for_decoding(params, model: Model):
  """Returns (model, params) that decode fast: matrices in the compute dtype, separate blocks.

  Norm scales, the router and the value head keep their dtype, because the network reads them in
  f32; so do matrices held as int8, with their scales. Results equal the given model's, up to
  rounding if layers were scanned.
  """
  blocks = params["blocks"]
  if model.config.scan_layers and 0 not in blocks:
    blocks = {i: jax.tree.map(operator.itemgetter(i), blocks)
              for i in range(model.config.num_layers)}
  blocks = {i: _block(block, model) for i, block in blocks.items()}
  return decode_model(model), {**_cast(_without_blocks(params), model), "blocks": blocks}


def _without_blocks(params):
  return {name: x for name, x in mtp.without(params).items() if name != "blocks"}


def _block(block, model: Model):
  """Returns a block's parameters as they are decoded with."""
  block = _cast(block, model)
  return _fused(block) if _fuses(model) else block


def _cast(tree, model: Model):
  dtype = jnp.dtype(model.config.compute_dtype)

  def leaf(path, x):
    unchanged = path[-1].key in FULL_PRECISION or not jnp.issubdtype(x.dtype, jnp.floating)
    return x if unchanged else x.astype(dtype)

  return jax.tree_util.tree_map_with_path(leaf, tree)


class Part(NamedTuple):
  """A program that makes a part of the copy.

  Attributes:
    name: `whole`, `rest` (all but the blocks) or `block`.
    program: jitted, of `arguments`.
    arguments: parameters, and for `block` the number of the layer.
    runs: how often it runs for one copy.
  """

  name: str
  program: jax.stages.Wrapped
  arguments: tuple
  runs: int


@dataclasses.dataclass(frozen=True)
class HandOver:
  """`for_decoding` as compiled programs, laid out over a mesh by DECODING_RULES.

  With scanned layers, a small program runs once for each layer and takes it out of the stack: a
  program for all layers takes long to compile. Arrays that are right already pass without a copy.

  Attributes:
    model: as it is trained.
    mesh: of the sampler. On None or one device arrays stay where they are.
  """

  model: Model
  mesh: Mesh | None

  def __call__(self, params):
    if self._ready(params):
      return params
    parts_by_name = {part.name: part for part in self.parts(params)}
    if "whole" in parts_by_name:
      return parts_by_name["whole"].program(params)
    outer, block = parts_by_name["rest"], parts_by_name["block"]
    blocks = {i: block.program(params["blocks"], self._number(i)) for i in range(block.runs)}
    return {**outer.program(*outer.arguments), "blocks": blocks}

  def parts(self, params) -> list[Part]:
    """Returns the programs of one copy; `params` may be abstract."""
    outer, block, full = self._programs
    if not self.model.config.scan_layers:
      return [Part("whole", full, (params,), 1)]
    return [Part("rest", outer, (_without_blocks(params),), 1),
            Part("block", block, (params["blocks"], 0), self.model.config.num_layers)]

  def _number(self, layer: int):
    """Returns the number of a layer, on the devices that the copy is made on."""
    sharding = None if self.layout is None else parallel.replicated(self.mesh)
    return jax.device_put(np.int32(layer), sharding)

  @functools.cached_property
  def layout(self):
    """Shardings of the copy; None if it stays where it is."""
    if self.mesh is None or self.mesh.size == 1:
      return None
    return parallel.param_shardings(decode_model(self.model), self.mesh, parallel.DECODING_RULES)

  @functools.cached_property
  def _programs(self) -> tuple:
    """(all but the blocks, one block of a stack, everything), jitted."""

    def rollout_params_rest(unstacked):
      return _cast(unstacked, self.model)

    def rollout_params_block(blocks, layer):
      return _block(jax.tree.map(functools.partial(_layer, layer), blocks), self.model)

    def rollout_params(params):
      return for_decoding(params, self.model)[1]

    layout = self.layout
    outer = block = None
    if layout is not None:
      outer = {name: x for name, x in layout.items() if name != "blocks"}
      block = layout["blocks"][0]
    return (jax.jit(rollout_params_rest, out_shardings=outer),
            jax.jit(rollout_params_block, out_shardings=block),
            jax.jit(rollout_params, out_shardings=layout))

  @functools.cached_property
  def _dtypes(self):
    def decoding_dtypes(params):
      return for_decoding(params, self.model)[1]

    return jax.tree.map(_dtype_name, jax.eval_shape(decoding_dtypes, self.model.shapes()))

  def _ready(self, params) -> bool:
    return jax.tree.map(_dtype_name, params) == self._dtypes and (
        self.layout is None or jax.tree.all(jax.tree.map(_lies, params, self.layout)))


@functools.lru_cache(maxsize=32)
def make(model: Model, mesh: Mesh | None) -> HandOver:
  """Returns the HandOver of a model and mesh; equal arguments share its compiled programs."""
  return HandOver(model, mesh)


def _layer(layer, stack):
  return lax.dynamic_index_in_dim(stack, layer, keepdims=False)


def _lies(x, sharding) -> bool:
  return isinstance(x, jax.Array) and x.sharding.is_equivalent_to(sharding, x.ndim)


def _dtype_name(x) -> str:
  return x.dtype.name
