"""The standard tables of the laboratory, over the registered estimators, advantages, aggregations.

A cell of a group study is (method, EstimatorConfig, AdvantageConfig, AggregationConfig).
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from experiments.tables_lib.exact import exact, exact_gradient, exact_group, monte_carlo
from experiments.tables_lib.exact.moments import Report, report, single_sequence
from jaxrl_llm.config import EstimatorConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.registry import AGGREGATIONS

OPEN = "none"  # no bound
_NO_WINDOW: dict[str, Any] = {"log_low": OPEN, "log_high": OPEN, "log_dual": OPEN}
METRICS = tuple(f.name for f in dataclasses.fields(Report))

# Every window is open, so that a table shows the effect of only the ratio.
WEIGHTS = {
    "none": EstimatorConfig("reinforce"),
    "token": EstimatorConfig("ppo", clip_low=OPEN, clip_high=OPEN),
    "gspo s": EstimatorConfig("gspo", clip_low=OPEN, clip_high=OPEN),
    "prefix geometric mean": EstimatorConfig("ctpo_geomean", **_NO_WINDOW),
    "minpro": EstimatorConfig("minpro"),
    "minpro, capped": EstimatorConfig("minpro", cap_at_one=True),
    "cumulative": EstimatorConfig("ctpo", **_NO_WINDOW),
    "full sequence": EstimatorConfig("seq_is", cap=OPEN),
}


@dataclasses.dataclass(frozen=True)
class TableRow:
  """One line of a table.

  Attributes:
    study, kind: name of the study; "exact" or "Monte Carlo".
    method, advantage, aggregation: names.
    drift: standard deviation of the logit difference of target and behavior.
    horizon, group, instances: largest length, rows of a group, random instances.
    mean: metric to its mean over instances.
    error: metric to the standard error of that mean.
    values: metric to its values, [instances]; empty for Monte Carlo.
  """

  study: str
  kind: str
  method: str
  advantage: str
  aggregation: str
  drift: float
  horizon: int
  group: int
  instances: int
  mean: dict[str, float]
  error: dict[str, float]
  values: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def as_published() -> dict[str, EstimatorConfig]:
  """Returns every estimator that weighs a row by itself, with its default numbers."""
  return {name: EstimatorConfig(name) for name in estimators.names()
          if not estimators.spec(name).of_groups}


def aggregation_names() -> tuple[str, ...]:
  """Returns the names of all aggregations."""
  return tuple(AGGREGATIONS.names())


class Population(NamedTuple):
  """Random problems: their vocabulary, how many, and the seed."""

  vocabulary: int
  instances: int
  seed: int


def single_study(study: str, methods: dict[str, EstimatorConfig], population: Population, *,
                 horizons, drifts) -> list[TableRow]:
  """Compares each method with grad J(pi), exactly: one sampled sequence is one sample.

  The advantage is R - E_mu[R], the aggregation `sequence_sum`.
  """
  (vocabulary, instances, seed), drifts, cases = population, tuple(drifts), {}
  for horizon in horizons:
    case = exact.random_case(exact.make_tree(vocabulary, horizon), drifts, instances, seed)
    cases[horizon] = case, exact.policy_gradient(case.tree, case.target_logits, case.rewards)
  rows = []
  for method, estimator in methods.items():
    coefficient = exact_gradient.row_function(estimator)
    for horizon, (case, target) in cases.items():
      moments = single_sequence(case, coefficient, width=max(cases))
      measured = _without_weight(report(moments, target), estimator)
      for index, drift in enumerate(drifts):
        rows.append(
            TableRow(study, "exact", method, "R - E[R]", "sequence_sum", drift, horizon, 1,
                     instances, *_over_instances(measured, index)))
  return rows


def group_study(study: str, cells, population: Population, *, drift: float, horizon: int,
                group_size: int) -> list[TableRow]:
  """Compares each cell with grad J(pi), exactly: one group of sequences is one sample.

  The sequences have varying lengths; the sum runs over every multiset of them.
  """
  vocabulary, instances, seed = population
  tree = exact.make_tree(vocabulary, horizon, stop=True)
  case = exact.random_case(tree, (drift,), instances, seed)
  targets = exact.policy_gradient(tree, case.target_logits, case.rewards)[0]
  groups = exact_group.multisets(len(tree.tokens), group_size)
  rows = []
  for method, estimator, advantage, aggregation, functions in _compiled(cells):
    moments = [exact_group.group_moments(exact.select(case, 0, i), groups, *functions)
               for i in range(instances)]
    reports = [report(*pair) for pair in zip(moments, targets, strict=True)]
    measured = _without_weight(_stack(reports), estimator)
    rows.append(
        TableRow(study, "exact", method, advantage.name, aggregation.name, drift, horizon,
                 group_size, instances, *_over_instances(measured, 0)))
  return rows


class SampledGroups(NamedTuple):
  """Groups that are sampled: rows of each, how many, and the seed."""

  group_size: int
  samples: int
  seed: int


def sampled_group_study(study: str, cells, groups: SampledGroups, *, drift: float, vocabulary: int,
                        horizon: int) -> list[TableRow]:
  """Compares as `group_study`, for one instance and by sampling; errors are of the sampling."""
  group_size, samples, seed = groups
  tree = exact.make_tree(vocabulary, horizon, stop=True)
  case = exact.select(exact.random_case(tree, (drift,), 1, seed), 0, 0)
  target = exact.policy_gradient(tree, case.target_logits, case.rewards)
  rows = []
  for method, _, advantage, aggregation, functions in _compiled(cells):
    reports = monte_carlo.group_report(case, functions, target, group_size=group_size,
                                       samples=samples, seed=seed)
    mean, error = ({m: float(getattr(r, m)) for m in METRICS} for r in reports)
    rows.append(
        TableRow(study, "Monte Carlo", method, advantage.name, aggregation.name, drift, horizon,
                 group_size, 1, mean, error))
  return rows


def identity_study(*, vocabulary: int, horizon: int, drift: float, instances: int,
                   seed: int) -> list[tuple[str, str, str, float]]:
  """Returns how far weights are from the targets of `stated_targets`, and from wrong ones.

  Returns:
    (weight, advantage, target, largest relative distance over instances) of each pairing.
  """
  tree = exact.make_tree(vocabulary, horizon, stop=True)
  case = exact.random_case(tree, (drift,), instances, seed)
  targets = stated_targets(case)
  q_pi = exact.action_values(tree, case.target_logits, case.rewards)
  pairings = [("full sequence", None, "grad J"), ("cumulative", q_pi, "grad J"),
              ("cumulative", None, "prefix pi, Q^mu"), ("cumulative", None, "grad J"),
              ("token", None, "prefix mu, Q^mu"), ("token", None, "grad J"),
              ("none", None, "grad J")]
  functions = {weight: exact_gradient.row_function(WEIGHTS[weight]) for weight, _, _ in pairings}
  rows = []
  for weight, advantage, target in pairings:
    moments = single_sequence(case, functions[weight], advantage)
    bias = report(moments, targets[target]).bias
    rows.append((weight, "R - E[R]" if advantage is None else "Q^pi", target, float(bias.max())))
  return rows


def stated_targets(case: exact.Case) -> dict[str, np.ndarray]:
  """Returns what weights are unbiased for, each [..., num_nodes, V] over the target's logits.

    grad J             sum_t E_{prefix ~ pi, a ~ pi} [Q^pi grad log pi], by autodiff of J
    prefix pi, Q^mu    sum_t E_{prefix ~ pi, a ~ pi} [Q^mu grad log pi]
    prefix mu, Q^mu    sum_t E_{prefix ~ mu, a ~ pi} [Q^mu grad log pi]

  With sampled rewards the full-sequence ratio is unbiased for the first, the cumulative ratio for
  the second and the token ratio for the third; with Q^pi as advantage the cumulative ratio is
  unbiased for the first. Own derivation.
  """
  tree, target, behavior = case.tree, case.target_logits, case.behavior_logits
  q_mu = exact.edge_values(tree, behavior, case.rewards)
  action = np.exp(exact.log_softmax(target))
  out = {"grad J": exact.policy_gradient(tree, target, case.rewards)}
  for name, logits in (("prefix pi, Q^mu", target), ("prefix mu, Q^mu", behavior)):
    weighted = exact.prefix_probs(tree, logits)[..., None] * action * q_mu
    out[name] = weighted - weighted.sum(-1, keepdims=True) * action
  return out


def ratio_variances(*, vocabulary: int, horizon: int, drift: float, instances: int,
                    seed: int) -> dict[str, np.ndarray]:
  """Returns Var_mu of each weight at every position, [T], exact, as the mean over instances."""
  tree = exact.make_tree(vocabulary, horizon)
  case = exact.random_case(tree, (drift,), instances, seed)
  pi, mu = (exact.token_log_probs(tree, x)[0] for x in (case.target_logits, case.behavior_logits))
  probs = exact.sequence_probs(tree, case.behavior_logits)[0][..., None]
  mask = tree.mask & np.ones_like(pi, bool)
  out = {}
  for name in ("token", "prefix geometric mean", "minpro", "cumulative", "full sequence"):
    weights = exact_gradient.row_function(WEIGHTS[name])(pi, mu, np.ones_like(pi), mask)[0]
    mean, square = np.sum(probs * weights, 1), np.sum(probs * np.square(weights), 1)
    out[name] = np.mean(square - np.square(mean), 0)
  return out


def log_ratio_range(*, vocabulary: int, horizon: int, drifts, instances: int,
                    seed: int) -> tuple[float, float]:
  """Returns the smallest and the largest cumulative log-ratio in `single_study`'s cases, nats.

  The estimators clamp log-ratios; the range tells whether a clamp can have acted.
  """
  tree = exact.make_tree(vocabulary, horizon)
  case = exact.random_case(tree, tuple(drifts), instances, seed)
  pi, mu = (exact.token_log_probs(tree, x) for x in (case.target_logits, case.behavior_logits))
  sums = np.cumsum(pi - mu, -1)
  return float(sums.min()), float(sums.max())


def _compiled(cells):
  """Yields each cell with its advantage and coefficient functions; equal ones are built once."""
  advantage_functions, coefficient_functions = {}, {}
  for method, estimator, advantage, aggregation in cells:
    key = estimator, aggregation
    if advantage not in advantage_functions:
      advantage_functions[advantage] = exact_group.advantage_function(advantage)
    if key not in coefficient_functions:
      coefficient_functions[key] = exact_group.group_coefficient_function(*key)
    functions = advantage_functions[advantage], coefficient_functions[key]
    yield method, estimator, advantage, aggregation, functions


def _without_weight(measured: Report, estimator: EstimatorConfig) -> Report:
  """Sets the effective share of a regularised loss to NaN: no weight multiplies its advantage."""
  if not estimators.spec(estimator.name).regularized:
    return measured
  return dataclasses.replace(measured, effective=np.full_like(measured.effective, np.nan))


def _stack(reports: list[Report]) -> Report:
  """Returns reports of single instances as one with leading axes [1, instances]."""
  return Report(*(np.array([[getattr(r, m) for r in reports]]) for m in METRICS))


def _over_instances(measured: Report, index: int) -> tuple[dict, dict, dict]:
  """Returns (mean, standard error, values [instances]) of one drift, each by metric."""
  values = {m: getattr(measured, m)[index] for m in METRICS}
  mean = {m: float(np.mean(v)) for m, v in values.items()}
  return mean, {m: standard_error(v) for m, v in values.items()}, values


def standard_error(values: np.ndarray) -> float:
  """Returns the standard error of the mean of `values` [n]; NaN of fewer than two."""
  if len(values) < 2:
    return float("nan")
  return float(np.std(values, ddof=1) / np.sqrt(len(values)))
