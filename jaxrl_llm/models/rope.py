"""Rotary position embeddings, and the stretching of their frequencies for longer contexts."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl_llm.config import RopeScalingConfig
from jaxrl_llm.fields import ConfigError


def frequencies(size: int, base: float, scaling: RopeScalingConfig) -> Float[Array, " half"]:
  """Returns radians per position of each pair of components, f32.

    f_i = base^(-2i / size)
    linear:  f_i / factor
    llama3:  f_i (s + (1 - s) / factor)  with  s = clip((r - low) / (high - low), 0, 1)
             and r = original_length f_i / (2 pi), turns within the original context
    yarn:    f_i (s_i + (1 - s_i) / factor)  with  s_i = 1 - clip((i - low) / (high - low), 0, 1)
             and low, high = i at which r is beta_fast, beta_slow, as integers if `truncate`

  Args:
    size: width of a head.
    base: base of the geometric series.
    scaling: name and numbers of the stretching.

  Raises:
    ConfigError: llama3 with high_frequency_factor <= low_frequency_factor.

  Source: arXiv 2104.09864; linear: arXiv 2306.15595; llama3: the rope_scaling of the published
  Llama 3.1 configs; yarn: arXiv 2309.00071.
  """
  half = size // 2
  frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
  if scaling.name == "linear":
    return frequency / scaling.factor
  if scaling.name == "llama3":
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    if high <= low:
      raise ConfigError(
          f"model.rope_scaling.high_frequency_factor = {high} is not above "
          f"low_frequency_factor = {low}. Fix: raise it; published Llama 3 models have 4 and 1.")
    turns = scaling.original_length * frequency / (2 * math.pi)
    kept_share = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequency * (kept_share + (1 - kept_share) / scaling.factor)
  if scaling.name == "yarn":
    low, high = _yarn_range(size, base, scaling)
    kept_share = 1 - jnp.clip((jnp.arange(half, dtype=jnp.float32) - low) / (high - low), 0.0, 1.0)
    return frequency * (kept_share + (1 - kept_share) / scaling.factor)
  return frequency


def _yarn_range(size: int, base: float, scaling: RopeScalingConfig) -> tuple[float, float]:
  """Returns the pairs between which YaRN goes over from keeping frequencies to stretching them."""
  def pair(turns: float) -> float:
    wavelength = scaling.original_length / (turns * 2 * math.pi)
    return size * math.log(wavelength) / (2 * math.log(base))

  low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
  if scaling.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, size - 1)
  return low, high if high != low else high + 0.001


def attention_factor(scaling: RopeScalingConfig) -> float:
  """Returns the factor that multiplies rotated queries and keys; 1 without YaRN."""
  if scaling.name != "yarn":
    return 1.0
  if scaling.attention_factor is not None:
    return scaling.attention_factor
  return 0.1 * math.log(scaling.factor) + 1.0


def rotate(x: Float[Array, "R S H d"], positions: Int[Array, "R S"],
           frequency: Float[Array, " half"], factor: float = 1.0) -> Float[Array, "R S H d"]:
  """Returns x with pair i rotated by position * frequency[i] and multiplied by `factor`, in the
  dtype of x.

  Pair i is (x_i, x_{i + d/2}), as in Hugging Face's models.
  """
  angle = positions[..., None, None].astype(jnp.float32) * frequency
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  if factor != 1.0:
    cos, sin = cos * factor, sin * factor
  first, second = jnp.split(x.astype(jnp.float32), 2, -1)
  halves = [first * cos - second * sin, second * cos + first * sin]
  return jnp.concatenate(halves, -1).astype(x.dtype)
