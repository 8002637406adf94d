"""Exact mean and variance of the gradient of registered estimators, one sequence per sample.

The coefficient of grad log pi at every token comes from autodiff of the weighted loss that training
uses, with the registered functions. The expectation over the behavior policy is then a sum over the
tree.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.config import AggregationConfig, EstimatorConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.aggregation import loss_weights

CHUNK = 16384  # rows per compiled call; fewer are padded, so that one compilation serves every tree
LEAST = 1e-12  # coefficients of REINFORCE up to this size count as zero


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
  """Exact first and second moment of a gradient estimator g under the behavior policy.

  Attributes:
    mean: [..., num_nodes, V], E g.
    square: [...], E ||g||^2.
    effective: [...], the effective share of the samples, (E sum w)^2 / (E sum 1 E sum w^2). The
      sums run over the tokens with an advantage; w = coefficient / REINFORCE's coefficient.
  """

  mean: np.ndarray
  square: np.ndarray
  effective: np.ndarray


def coefficient_function(estimator: EstimatorConfig, aggregation: AggregationConfig) -> Callable:
  """Returns a function that computes the coefficients of grad log pi on an optimizer batch.

    f(log_probs, anchor, advantages, mask, group_id) -> (coefficients, REINFORCE's coefficients)

  All arrays are [B, L] but group_id, [B]. The loss is sum(loss_weights * per_token_loss) as in
  objective/loss.py; its gradient is minus the sum of coefficient * grad log pi. REINFORCE's
  coefficients are loss_weights * advantages.
  """
  call = estimators.get_estimator(estimator.name)

  def coefficients(log_probs, anchor, advantages, mask, group_id):
    weights = loss_weights(mask, advantages, group_id, aggregation)
    columns = estimators.stand_ins(estimator, anchor, mask)

    def loss(x):
      per_token = call(x, anchor, advantages, mask, estimator, **columns).per_token_loss
      return jnp.sum(weights * jnp.where(mask, per_token, 0))

    return -jax.grad(loss)(log_probs), weights * jnp.where(mask, advantages, 0)

  return coefficients


def row_function(
    estimator: EstimatorConfig,
    aggregation: AggregationConfig = AggregationConfig("sequence_sum"),
) -> Callable:
  """Returns the `coefficient_function` for rows that are each a separate optimizer batch.

    f(log_probs, anchor, advantages, mask) -> (coefficients, REINFORCE's coefficients)

  It takes host arrays that broadcast to [..., L] and returns float64 arrays of that shape.
  """
  batch = coefficient_function(estimator, aggregation)

  def single(log_probs, anchor, advantages, mask):
    out = batch(log_probs[None], anchor[None], advantages[None], mask[None],
                jnp.zeros(1, jnp.int32))
    return tuple(x[0] for x in out)

  program = jax.jit(jax.vmap(single))

  def row_coefficients(*arrays):
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    flat = [np.broadcast_to(x, shape).reshape(-1, shape[-1]) for x in arrays]
    return tuple(x.reshape(shape) for x in in_chunks(program, flat, CHUNK))

  return row_coefficients


def in_chunks(function: Callable, arrays, size: int) -> tuple[np.ndarray, ...]:
  """Applies `function` in float64 to `size` entries of the first axis at a time.

  The last call is padded with zeros, so that all calls have one shape.

  Args:
    function: takes arrays and returns a tuple of arrays, with equal first axes.
    arrays: its arguments.
    size: entries per call.
  """
  total, chunks = len(arrays[0]), []
  with jax.enable_x64(True):
    for start in range(0, total, size):
      count = min(size, total - start)
      chunk = [_padded(x[start:start + count], size) for x in arrays]
      chunks.append([np.asarray(x)[:count] for x in function(*chunk)])
  return tuple(np.concatenate(column) for column in zip(*chunks, strict=True))


def _padded(x: np.ndarray, length: int) -> np.ndarray:
  """Fills the first axis with zeros up to `length`."""
  if len(x) == length:
    return x
  return np.pad(x, [(0, length - len(x))] + [(0, 0)] * (x.ndim - 1))


def weight_sums(coefficients: np.ndarray,
                plain: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns (sum 1, sum w, sum w^2) over the last axis, w = coefficients / plain.

  Entries where `plain`, REINFORCE's coefficient, is zero are left out.
  """
  live = np.abs(plain) > LEAST
  weights = np.where(live, coefficients / np.where(live, plain, 1), 0.0)
  return live.sum(-1).astype(np.float64), weights.sum(-1), np.square(weights).sum(-1)


def effective_share(count: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns (sum w)^2 / (count sum w^2) from count, sum w and sum w^2; 0 without any weight."""
  return np.square(first) / np.where(second > 0, count * second, 1)
