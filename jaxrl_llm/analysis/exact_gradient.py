"""What a registered estimator expects: its exact mean gradient and variance, sequence by sequence.

The coefficient of grad log pi at every token comes from autodiff of the weighted loss that training
uses, with the registered functions; the expectation over the behavior policy is then a sum over the
tree.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.analysis import exact
from jaxrl_llm.config import AggregationConfig, EstimatorConfig
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.objective.estimators import get_estimator

CHUNK = 16384  # rows per compiled call; fewer are padded, so that one compilation serves every tree


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
  """Exact first and second moment of a gradient estimator under the behavior policy.

  Attributes:
    mean: [..., num_nodes, V], E[g].
    square: [...], E ||g||^2.
    effective: [...], (E sum w)^2 / (E sum 1 E sum w^2) over tokens with an advantage, w =
      coefficient / REINFORCE's coefficient: the effective share of the samples.
  """

  mean: np.ndarray
  square: np.ndarray
  effective: np.ndarray


def coefficient_function(estimator: EstimatorConfig, aggregation: AggregationConfig) -> Callable:
  """f(log_probs, anchor, advantages, mask, group_id) -> (coefficients, REINFORCE's coefficients),
  both [B, L].

  The loss is sum(loss_weights * per_token_loss) as in objective/loss.py; its gradient is minus the
  sum of coefficient * grad log pi. REINFORCE's coefficients are loss_weights * advantages.
  """
  call = get_estimator(estimator.name)

  def coefficients(log_probs, anchor, advantages, mask, group_id):
    weights = loss_weights(mask, advantages, group_id, aggregation)

    def loss(x):
      return jnp.sum(weights *
                     jnp.where(mask,
                               call(x, anchor, advantages, mask, estimator).per_token_loss, 0))

    return -jax.grad(loss)(log_probs), weights * jnp.where(mask, advantages, 0)

  return coefficients


def row_function(
    estimator: EstimatorConfig, aggregation: AggregationConfig = AggregationConfig("sequence_sum")
) -> Callable:
  """f(log_probs, anchor, advantages, mask) of host arrays [..., L], each row its own batch of one;
  float64.
  """
  batch = coefficient_function(estimator, aggregation)

  def row(log_probs, anchor, advantages, mask):
    out = batch(log_probs[None], anchor[None], advantages[None], mask[None],
                jnp.zeros(1, jnp.int32))
    return tuple(x[0] for x in out)

  compiled = jax.jit(jax.vmap(row))

  def rows(*arrays):
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    flat = [np.broadcast_to(x, shape).reshape(-1, shape[-1]) for x in arrays]
    return tuple(x.reshape(shape) for x in in_chunks(compiled, flat, CHUNK))

  return rows


def in_chunks(function: Callable, arrays, size: int) -> tuple[np.ndarray, ...]:
  """`function` over the first axis, `size` rows a call (the last call padded with zeros), in
  float64.
  """
  total, parts = len(arrays[0]), []
  with jax.enable_x64(True):
    for start in range(0, total, size):
      rows = [x[start:start + size] for x in arrays]
      short = size - len(rows[0])
      out = function(
          *(np.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1)) if short else x for x in rows))
      parts.append([np.asarray(x)[:size - short] for x in out])
  return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def single_sequence(problem: exact.Problem, rows: Callable, advantages: np.ndarray | None = None,
                    width: int | None = None) -> Moments:
  """Moments of one sampled sequence's gradient.

  Args:
    problem: leading axes allowed.
    rows: from `row_function`.
    advantages: [..., N] or [..., N, T]; None: the sampled reward minus the constant E_mu[R].
    width: columns that the estimator sees, at least T, so that several horizons share a
      compilation.
  """
  tree, horizon = problem.tree, problem.tree.tokens.shape[1]
  probs = exact.sequence_probs(tree, problem.behavior_logits)
  if advantages is None:
    advantages = problem.rewards - np.sum(probs * problem.rewards, -1, keepdims=True)
  if advantages.ndim == probs.ndim:
    advantages = np.broadcast_to(advantages[..., None], (*probs.shape, horizon))
  wide = lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, (width or horizon) - horizon)])
  arrays = [
      wide(exact.token_log_probs(tree, logits))
      for logits in (problem.target_logits, problem.behavior_logits)
  ]
  coefficients, plain = (x[..., :horizon] for x in rows(*arrays, wide(advantages), wide(tree.mask)))
  weighted = probs[..., None] * coefficients
  # The prefixes along one sequence differ, so the scores of its tokens are orthogonal.
  energy = exact.score_energy(tree, problem.target_logits)
  totals = [np.sum(probs * x, -1) for x in weight_sums(coefficients, plain)]
  return Moments(exact.score_sum(tree, problem.target_logits, weighted),
                 np.sum(weighted * coefficients * energy, (-2, -1)), effective_share(*totals))


def weight_sums(coefficients: np.ndarray,
                plain: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(sum 1, sum w, sum w^2) over the last axis, w = coefficients / plain where plain is not 0."""
  live = np.abs(plain) > 1e-12
  weights = np.where(live, coefficients / np.where(live, plain, 1), 0.0)
  return live.sum(-1).astype(np.float64), weights.sum(-1), np.square(weights).sum(-1)


def effective_share(count: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """(sum w)^2 / (count sum w^2); 0 without any weight."""
  return np.square(first) / np.where(second > 0, count * second, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
  """A gradient estimator against a target; every field has the leading axes of the problem.

  Attributes:
    bias: ||E g - target|| / ||target||.
    cosine: between E g and the target.
    scale: <E g, target> / ||target||^2; 1 where only the direction is off.
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
  """`moments` against `target` [..., num_nodes, V]."""
  dot = lambda a, b: np.sum(a * b, (-2, -1))
  mean, size, length = moments.mean, dot(target, target), dot(moments.mean, moments.mean)
  variance = moments.square - length
  along, gap = dot(mean, target), mean - target
  return Report(np.sqrt(dot(gap, gap) / size), along / np.sqrt(size * length), along / size,
                variance, variance / length, moments.effective)
