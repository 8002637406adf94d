"""Differences that single means do not resolve: methods on the same instances, and baselines that
are known against baselines that are estimated.
"""

import dataclasses

import numpy as np

from experiments.tables_lib.exact import exact, exact_gradient
from experiments.tables_lib.exact.moments import report, score_energy, single_sequence
from experiments.tables_lib.exact.studies import TableRow, standard_error
from jaxrl_llm.config import EstimatorConfig


@dataclasses.dataclass(frozen=True)
class Difference:
  """One metric of two methods on the same instances.

  Attributes:
    method, other: names.
    drift: as in TableRow.
    mean: of method minus other, over instances.
    error: standard error of that mean; smaller than the two methods' errors, because what an
      instance adds to both is left out.
    relative: `mean` over the mean of `other`.
  """

  method: str
  other: str
  drift: float
  mean: float
  error: float
  relative: float


def differences(rows: list[TableRow], pairs, metric: str) -> list[Difference]:
  """Returns the difference of each pair (method, reference) at every drift of an exact study.

  Raises:
    KeyError: a method that the rows do not have.
  """
  values = {(row.method, row.drift): row.values[metric] for row in rows}
  out = []
  for method, reference in pairs:
    for drift in sorted({row.drift for row in rows}):
      method_values, reference_values = values[method, drift], values[reference, drift]
      gap = method_values - reference_values
      out.append(Difference(method, reference, drift, float(np.mean(gap)), standard_error(gap),
                            float(np.mean(gap) / np.mean(reference_values))))
  return out


def optimal_baseline(case: exact.Case) -> np.ndarray:
  """Returns the optimal token baseline B_t of the behavior policy, [..., T].

    B_t = E[W_t R] / E[W_t]      W_t = sum of ||grad log pi||^2 up to t; 0 after the end

  It minimises E[W_t (R - B_t)^2]. `otb` estimates it from the rows of a group.
  """
  tree = case.tree
  probs = exact.sequence_probs(tree, case.behavior_logits)[..., None]
  weight = np.where(tree.mask, np.cumsum(score_energy(tree, case.target_logits), -1), 0)
  return np.sum(probs * weight * case.rewards[..., None], -2) / np.sum(probs * weight, -2)


def population_baselines(*, vocabulary: int, horizon: int, drift: float, group_size: int,
                         instances: int, seed: int) -> dict[str, np.ndarray]:
  """Returns the variance of a group's gradient where the baseline is known, [instances], exact.

  The cases are from `studies.group_study`, the estimator is reinforce, the aggregation
  `sequence_sum`. The rows of a group are then independent, so its variance is the variance of one
  row over `group_size`. The keys are none, mean (the expected reward) and otb (`optimal_baseline`).
  """
  tree = exact.make_tree(vocabulary, horizon, stop=True)
  case = exact.random_case(tree, (drift,), instances, seed)
  probs = exact.sequence_probs(tree, case.behavior_logits)
  rewards = np.where(tree.mask, case.rewards[..., None], 0)
  mean = np.sum(probs * case.rewards, -1)[..., None, None]
  baselines = {"none": np.zeros_like(mean), "mean": mean,
               "otb": optimal_baseline(case)[..., None, :]}
  coefficient = exact_gradient.row_function(EstimatorConfig("reinforce"))
  target = exact.policy_gradient(tree, case.target_logits, case.rewards)
  out = {}
  for name, baseline in baselines.items():
    advantages = np.where(tree.mask, rewards - baseline, 0)
    moments = single_sequence(case, coefficient, advantages)
    out[name] = report(moments, target).variance[0] / group_size
  return out
