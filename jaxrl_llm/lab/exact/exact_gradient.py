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
from jaxrl_llm.lab.exact import exact
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


def single_sequence(case: exact.Case, coefficient: Callable, advantages: np.ndarray | None = None,
                    width: int | None = None) -> Moments:
  """Returns the moments of the gradient of one sampled sequence.

  Args:
    case: leading axes allowed.
    coefficient: from `row_function`.
    advantages: [..., N] or [..., N, T]; None: the sampled reward minus the constant E_mu[R].
    width: columns that the estimator sees, at least T, so that several horizons share a
      compilation; None: T.
  """
  tree, horizon = case.tree, case.tree.tokens.shape[1]
  extra = (width or horizon) - horizon
  probs = exact.sequence_probs(tree, case.behavior_logits)
  if advantages is None:
    advantages = case.rewards - np.sum(probs * case.rewards, -1, keepdims=True)
  if advantages.ndim == probs.ndim:
    advantages = np.broadcast_to(advantages[..., None], (*probs.shape, horizon))
  arrays = (exact.token_log_probs(tree, case.target_logits),
            exact.token_log_probs(tree, case.behavior_logits), advantages, tree.mask)
  wide = [np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, extra)]) for x in arrays]
  coefficients, plain = (x[..., :horizon] for x in coefficient(*wide))
  weights = probs[..., None] * coefficients
  # The prefixes along one sequence differ, so the scores of its tokens are orthogonal.
  energy = exact.score_energy(tree, case.target_logits)
  totals = [np.sum(probs * x, -1) for x in weight_sums(coefficients, plain)]
  return Moments(
      mean=exact.score_sum(tree, case.target_logits, weights),
      square=np.sum(weights * coefficients * energy, (-2, -1)),
      effective=effective_share(*totals),
  )


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


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
  """A gradient estimator g against a target; every field has the leading axes of the case.

  Attributes:
    bias: ||E g - target|| / ||target||.
    cosine: between E g and the target.
    scale: <E g, target> / ||target||^2; 1 if E g is as long along the target as the target.
    variance: trace of the covariance of g.
    noise: variance / ||E g||^2, which does not depend on the scale of the loss.
    effective: see Moments.
  """

  bias: np.ndarray
  cosine: np.ndarray
  scale: np.ndarray
  variance: np.ndarray
  noise: np.ndarray
  effective: np.ndarray


def report(moments: Moments, target: np.ndarray) -> Report:
  """Compares `moments` with `target` [..., num_nodes, V]."""
  mean, gap = moments.mean, moments.mean - target
  size, length, along = _dot(target, target), _dot(mean, mean), _dot(mean, target)
  variance = moments.square - length
  return Report(
      bias=np.sqrt(_dot(gap, gap) / size),
      cosine=along / np.sqrt(size * length),
      scale=along / size,
      variance=variance,
      noise=variance / length,
      effective=moments.effective,
  )


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Returns the inner product over the last two axes."""
  return np.sum(a * b, (-2, -1))
