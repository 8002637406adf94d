"""A rollout's numerics, which may differ from the scorer's and the trainer's on purpose.

Samplers in production compute in other formats than trainers. Here the gap is a setting, so that
its corrections can be measured. The sampler's network and parameters are made from the trained ones
for every rollout, with adapters merged. Evaluation keeps the trainer's numerics, because it
measures the trained policy.

`int8` is weight-only: each matrix is rounded to int8 and multiplied out again, and products run in
the rollout's dtype. This reproduces the numbers of an int8 checkpoint, but not its size: sampling
holds one more copy of the weights. Integer products would need quantised activations too, which is
another approximation.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.config import DEFAULT, ConfigError, ModelConfig, RolloutConfig
from jaxrl_llm.models import Model
from jaxrl_llm.models.kv_cache import CachedConfig
from jaxrl_llm.models.layers import MATRICES
from jaxrl_llm.rollouts.hand_over import FULL_PRECISION


def resolve(cfg: RolloutConfig, model: ModelConfig) -> RolloutConfig:
  """Returns the config with its dtypes filled in.

  Raises:
    ConfigError: quantization needs a library that is not installed.
  """
  if cfg.quantization != "none":
    _library()
  dtype = model.compute_dtype if cfg.dtype == DEFAULT else cfg.dtype
  cache_dtype = dtype if cfg.cache_dtype == DEFAULT else cfg.cache_dtype
  return dataclasses.replace(cfg, dtype=dtype, cache_dtype=cache_dtype)


def rollout_model(model: Model, cfg: RolloutConfig) -> Model:
  """Returns the network that samples, which is `model` itself at the defaults."""
  cfg = resolve(cfg, model.config)
  shapes = dataclasses.replace(model.config, compute_dtype=cfg.dtype)
  if cfg.cache_dtype != cfg.dtype:
    values = {f.name: getattr(shapes, f.name) for f in dataclasses.fields(ModelConfig)}
    shapes = CachedConfig(**values, cache_dtype=cfg.cache_dtype)
  return model if shapes == model.config else dataclasses.replace(model, config=shapes)


def changes_params(model: Model, cfg: RolloutConfig) -> bool:
  """Whether the sampler reads other parameters than the trained ones."""
  dtype = resolve(cfg, model.config).dtype
  return cfg.quantization != "none" or dtype != model.config.compute_dtype


def rollout_numerics(model: Model, params, cfg: RolloutConfig) -> tuple[Model, dict]:
  """Returns (model, params) that sample, which are the trained ones at the defaults.

  Rounds the matrices of attention and MLP as `cfg.quantization` says; embedding, head, norms,
  biases, router and value head keep their values. Then casts matrices to the rollout's dtype, once
  instead of in each product.

  Args:
    params: of `model`, adapters merged; not changed.
  """
  if not changes_params(model, cfg):
    return rollout_model(model, cfg), params
  dtype = jnp.dtype(resolve(cfg, model.config).dtype)

  def leaf(path, x):
    keys = [entry.key for entry in path]
    if cfg.quantization == "int8" and keys[0] == "blocks" and keys[-1] in MATRICES:
      x = round_int8(x, *MATRICES[keys[-1]])
    return x if keys[-1] in FULL_PRECISION else x.astype(dtype)

  return rollout_model(model, cfg), jax.tree_util.tree_map_with_path(leaf, params)


def round_int8(matrix: jax.Array, contracted: int, produced: int) -> jax.Array:
  """Returns scale * round(matrix / scale), f32, with one scale per output channel and batch.

  The scale is the channel's largest absolute entry / 127.5, so the error is at most scale / 2. A
  channel of zeros stays zero.

  Args:
    matrix: [.., contracted axes, produced axes].
    contracted, produced: number of axes of each kind, as in `models.layers.MATRICES`.

  Raises:
    ConfigError: the library is not installed.
  """
  batch = matrix.ndim - contracted - produced
  kept = (*range(batch), *range(batch + contracted, matrix.ndim))
  qwix = _library()
  return qwix.dequantize(qwix.quantize(matrix.astype(jnp.float32), jnp.int8, channelwise_axes=kept))


def _library():
  """Returns qwix, an optional dependency."""
  try:
    import qwix
  except ImportError as error:
    raise ConfigError(
        "rollout.quantization = 'int8' needs qwix, which is not installed. Fix: pip install -e "
        "'.[quantization]', or rollout.quantization=none.") from error
  return qwix
