"""Matrices held as int8. Only a sampler's copy has them (rollouts/numerics.py); they have no
gradient.

A matrix W [D, F] is held as q [D, F] int8 and one scale per output channel, W = q * scale. So
x @ W = (x @ q) * scale, and the product reads one byte per entry.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import installing

NONE, ROUNDED, WEIGHTS, PRODUCTS = "none", "int8", "int8_weights", "int8_products"
STORED = (WEIGHTS, PRODUCTS)  # values of rollout.quantization that hold int8
# qwix would divide by 127.5. The largest entry of a token would then lie halfway between -127 and
# -128, so that the rounding of the division decided, which differs between compiled programs.
_TO_127 = f"absmax,{127.5 / 127}"


class Int8Matrix(nnx.Module):
  """A matrix that a block multiplies with, held as int8.

  Attributes:
    values: int8 of the matrix's shape, with its logical axes.
    scale: f32 of the output axes.
    products: whether activations are rounded to int8 too, so that the product is one of integers.
  """

  def __init__(self, shape: tuple[int, ...], axes: tuple[str, ...], produced: int, products: bool):
    self.values = nnx.Param(jnp.zeros(shape, jnp.int8), axes=axes)
    self.scale = nnx.Param(jnp.ones(shape[-produced:], jnp.float32), axes=axes[-produced:])
    self.products = products

  def product(self, x):
    """Returns x @ matrix for x [R, S, D], [R, S, F] in the dtype of x; several axes of either are
    merged.
    """
    # The conversion of q does not depend on x. Without the barrier a compiler may move it out of
    # the decode loop, and each step would then read a full copy in the wider dtype.
    x, values = lax.optimization_barrier((x, self.values[...]))
    values = values.reshape(x.shape[-1], -1)
    scale = self.scale[...].reshape(-1)
    return (integer_product if self.products else weight_product)(x, values, scale)


def weight_product(x, values, scale):
  """Returns (x @ values) * scale: the product in the dtype of x, the scale applied in f32.

  Args:
    x: [R, S, D] float.
    values: [D, F] int8.
    scale: [F] f32.
  """
  return ((x @ values.astype(x.dtype)).astype(jnp.float32) * scale).astype(x.dtype)


def integer_product(x, values, scale):
  """Returns (round(x / s) @ values) * s * scale, where s is each token's largest |x| / 127.

  Integers are multiplied and summed in int32, and scales applied in f32. Arguments as in
  `weight_product`.
  """
  qwix = library(PRODUCTS)
  tokens = qwix.quantize(x.astype(jnp.float32), jnp.int8, channelwise_axes=(0, 1),
                         calibration_method=_TO_127)
  contract = ((2,), (0,)), ((), ())
  return qwix.dot_general(tokens, qwix.QArray(values, scale[None]), contract).astype(x.dtype)


def quantize(matrix: jax.Array, contracted: int, produced: int, setting: str = ROUNDED):
  """Returns a qwix.QArray with one scale per output channel and batch, in f32.

  The scale is the channel's largest absolute entry / 127.5, so the error is at most scale / 2. A
  channel of zeros stays zero.

  Args:
    matrix: [.., contracted axes, produced axes].
    contracted, produced: number of axes of each kind, as in `models.layers.MATRICES`.
    setting: rollout.quantization, for the error.

  Raises:
    ConfigError: the library is not installed.
  """
  batch = matrix.ndim - contracted - produced
  channel_axes = (*range(batch), *range(batch + contracted, matrix.ndim))
  return library(setting).quantize(matrix.astype(jnp.float32), jnp.int8,
                                   channelwise_axes=channel_axes)


def stored(matrix: jax.Array, contracted: int, produced: int, setting: str = WEIGHTS) -> dict:
  """Returns the parameters of an Int8Matrix; arguments and errors as in `quantize`."""
  quantized = quantize(matrix, contracted, produced, setting)
  batch = matrix.ndim - contracted - produced
  shape = matrix.shape[:batch] + matrix.shape[batch + contracted:]
  assert math.prod(shape) == quantized.scale.size
  return {"values": quantized.qvalue, "scale": quantized.scale.reshape(shape)}


def library(setting: str):
  """Returns qwix, an optional dependency.

  Args:
    setting: rollout.quantization, for the error.

  Raises:
    ConfigError: it is not installed.
  """
  try:
    import qwix
  except ImportError as error:
    raise ConfigError(
        f"rollout.quantization = {setting!r} needs qwix, which is not installed. Fix: "
        f"{installing('quantization')}, or rollout.quantization=none.") from error
  return qwix
