"""Moments of the gradient of one sampled sequence, and how they compare with a target."""

import dataclasses
from collections.abc import Callable

import numpy as np

from experiments.tables_lib.exact import exact
from experiments.tables_lib.exact.exact_gradient import Moments, effective_share, weight_sums


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
  energy = score_energy(tree, case.target_logits)
  totals = [np.sum(probs * x, -1) for x in weight_sums(coefficients, plain)]
  return Moments(
      mean=score_sum(tree, case.target_logits, weights),
      square=np.sum(weights * coefficients * energy, (-2, -1)),
      effective=effective_share(*totals),
  )


def score_sum(tree: exact.Tree, logits: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
  """Sums coefficient * grad log pi(token) over sequences and tokens.

  Args:
    logits: [..., num_nodes, V], of pi.
    coefficients: [..., N, T].

  Returns:
    [..., num_nodes, V], over the logits.
  """
  edges = exact.edge_sum(tree, coefficients)
  return edges - edges.sum(-1, keepdims=True) * np.exp(exact.log_softmax(logits))


def score_energy(tree: exact.Tree, logits: np.ndarray) -> np.ndarray:
  """Returns ||grad log pi(token)||^2 over the logits, [..., N, T]; 0 after the end.

    ||grad log pi(a)||^2 = 1 - 2 pi(a) + sum_v pi(v)^2
  """
  probs = np.exp(exact.log_softmax(logits))
  energy = 1 - 2 * probs + np.square(probs).sum(-1, keepdims=True)
  return np.where(tree.mask, energy[..., tree.node, tree.tokens], 0.0)
