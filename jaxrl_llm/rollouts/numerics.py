"""A rollout's numerics, which may differ from the scorer's and the trainer's on purpose.

Samplers in production compute in other formats than trainers. Here the gap is a setting, so that
its corrections can be measured. The sampler's network and parameters are made from the trained ones
for every rollout, with adapters merged. Evaluation keeps the trainer's numerics, because it
measures the trained policy.

`rollout.quantization` chooses what becomes of the matrices of attention and MLP. Activations
between products stay in the rollout's dtype, and the other parameters are not quantised:

  int8           rounded to int8 and multiplied out again: the numbers of an int8 checkpoint, but
                 not its size
  int8_weights   held as int8 and one scale per output channel: the values of `int8` up to rounding,
                 in one byte per entry. Products run in the rollout's dtype.
  int8_products  held so too, with each token's activations rounded to int8 before a product of
                 integers (qwix): another approximation on top

In each of them, the log-probabilities of a rollout come from the network that sampled it.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.config import DEFAULT, ConfigError, ModelConfig, RolloutConfig
from jaxrl_llm.models import Model, int8, kv_cache
from jaxrl_llm.models.layers import MATRICES
from jaxrl_llm.rollouts.hand_over import FULL_PRECISION


def resolve(cfg: RolloutConfig, model: ModelConfig) -> RolloutConfig:
  """Returns the config with its dtypes filled in.

  Raises:
    ConfigError: quantization needs a library that is not installed, or a network without experts.
  """
  if cfg.quantization != int8.NONE:
    int8.library(cfg.quantization)
  if cfg.quantization in int8.STORED and model.num_experts:
    raise ConfigError(
        f"rollout.quantization = {cfg.quantization!r}: the matrices of experts are not held as "
        f"int8, and model.num_experts = {model.num_experts}. Fix: rollout.quantization=int8, which "
        "rounds them only, or none.")
  dtype = model.compute_dtype if cfg.dtype == DEFAULT else cfg.dtype
  cache_dtype = dtype if cfg.cache_dtype == DEFAULT else cfg.cache_dtype
  return dataclasses.replace(cfg, dtype=dtype, cache_dtype=cache_dtype)


def rollout_model(model: Model, cfg: RolloutConfig) -> Model:
  """Returns the network that samples, which is `model` itself at the defaults."""
  cfg = resolve(cfg, model.config)
  shapes = dataclasses.replace(model.config, compute_dtype=cfg.dtype)
  stored = cfg.quantization if cfg.quantization in int8.STORED else int8.NONE
  if cfg.cache_dtype != cfg.dtype or stored != int8.NONE:
    shapes = kv_cache.decoding(shapes, cache_dtype=cfg.cache_dtype, quantization=stored)
  return model if shapes == model.config else dataclasses.replace(model, config=shapes)


def changes_params(model: Model, cfg: RolloutConfig) -> bool:
  """Returns whether the sampler reads other parameters than the trained ones."""
  dtype = resolve(cfg, model.config).dtype
  return cfg.quantization != int8.NONE or dtype != model.config.compute_dtype


def rollout_numerics(model: Model, params, cfg: RolloutConfig) -> tuple[Model, dict]:
  """Returns (model, params) that sample, which are the trained ones at the defaults.

  Rounds the matrices of attention and MLP as `cfg.quantization` says, and holds them so if it says
  so; embedding, head, norms, biases, router and value head keep their values. Then casts the other
  matrices to the rollout's dtype, once instead of in each product.

  Args:
    params: of `model`, adapters merged; not changed.
  """
  if not changes_params(model, cfg):
    return rollout_model(model, cfg), params
  dtype = jnp.dtype(resolve(cfg, model.config).dtype)

  def leaf(path, x):
    keys = [entry.key for entry in path]
    if cfg.quantization != int8.NONE and keys[0] == "blocks" and keys[-1] in MATRICES:
      if cfg.quantization in int8.STORED:
        return int8.stored(x, *MATRICES[keys[-1]], cfg.quantization)
      x = round_int8(x, *MATRICES[keys[-1]])
    return x if keys[-1] in FULL_PRECISION else x.astype(dtype)

  return rollout_model(model, cfg), jax.tree_util.tree_map_with_path(leaf, params)


def round_int8(matrix: jax.Array, contracted: int, produced: int) -> jax.Array:
  """Returns scale * round(matrix / scale), f32; arguments and errors as in `int8.quantize`."""
  qwix = int8.library(int8.ROUNDED)
  return qwix.dequantize(int8.quantize(matrix, contracted, produced))
