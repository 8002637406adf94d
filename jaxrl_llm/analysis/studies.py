"""The standard tables of the laboratory; estimators, advantages and aggregations come from their
registries.
"""

import dataclasses

import numpy as np

from jaxrl_llm.analysis import exact, exact_gradient, exact_group, monte_carlo
from jaxrl_llm.analysis.exact_gradient import Report
from jaxrl_llm.config import AggregationConfig, EstimatorConfig
from jaxrl_llm.objective import estimators

OPEN = "none"  # no bound
_NO_WINDOW = {"log_low": OPEN, "log_high": OPEN, "log_dual": OPEN}
METRICS = tuple(f.name for f in dataclasses.fields(Report))

# The weights alone, with every window open: what the ratio itself does.
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
class Row:
  """One line of a table: means over instances and their standard errors, both by name of the
  metric.
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
  mean: dict
  error: dict


def as_published() -> dict[str, EstimatorConfig]:
  """Every registered estimator with its default numbers."""
  return {name: EstimatorConfig(name) for name in estimators.names()}


def aggregation_names() -> tuple[str, ...]:
  return next(
      f.metadata["choices"] for f in dataclasses.fields(AggregationConfig) if f.name == "name")


def single_study(study: str, methods: dict[str, EstimatorConfig], *, vocabulary: int, horizons,
                 drifts, instances: int, seed: int) -> list[Row]:
  """One sampled sequence, advantage R - E_mu[R], `sequence_sum`: exact, against grad J(pi)."""
  drifts, problems = tuple(drifts), {}
  for horizon in horizons:
    problem = exact.random_problem(exact.make_tree(vocabulary, horizon), drifts, instances, seed)
    problems[horizon] = (problem,
                         exact.policy_gradient(problem.tree, problem.target_logits,
                                               problem.rewards))
  rows = []
  for method, estimator in methods.items():
    function = exact_gradient.row_function(estimator)
    for horizon, (problem, target) in problems.items():
      moments = exact_gradient.single_sequence(problem, function, width=max(problems))
      measured = _without_weight(exact_gradient.report(moments, target), estimator)
      for index, drift in enumerate(drifts):
        mean, error = _over_instances(measured, index)
        rows.append(
            Row(study, "exact", method, "R - E[R]", "sequence_sum", drift, horizon, 1, instances,
                mean, error))
  return rows


def group_study(study: str, cells, *, drift: float, vocabulary: int, horizon: int, group_size: int,
                instances: int, seed: int) -> list[Row]:
  """Groups of completions with varying lengths, every multiset: exact, against grad J(pi).

  Args:
    cells: (method, EstimatorConfig, AdvantageConfig, AggregationConfig) each.
  """
  tree = exact.make_tree(vocabulary, horizon, stop=True)
  problem = exact.random_problem(tree, (drift,), instances, seed)
  targets = exact.policy_gradient(tree, problem.target_logits, problem.rewards)[0]
  groups = exact_group.multisets(len(tree.tokens), group_size)
  rows = []
  for method, estimator, advantage, aggregation, functions in _compiled(cells):
    moments = [
        exact_group.group_moments(exact.select(problem, 0, i), groups, *functions)
        for i in range(instances)
    ]
    reports = [exact_gradient.report(*pair) for pair in zip(moments, targets, strict=True)]
    mean, error = _over_instances(_without_weight(_stack(reports), estimator), 0)
    rows.append(
        Row(study, "exact", method, advantage.name, aggregation.name, drift, horizon, group_size,
            instances, mean, error))
  return rows


def sampled_group_study(study: str, cells, *, drift: float, vocabulary: int, horizon: int,
                        group_size: int, samples: int, seed: int) -> list[Row]:
  """As `group_study` for one instance by sampling; the errors are those of the sampling."""
  tree = exact.make_tree(vocabulary, horizon, stop=True)
  problem = exact.select(exact.random_problem(tree, (drift,), 1, seed), 0, 0)
  target = exact.policy_gradient(tree, problem.target_logits, problem.rewards)
  rows = []
  for method, _, advantage, aggregation, functions in _compiled(cells):
    estimate, error = monte_carlo.group_report(problem, *functions, target, group_size=group_size,
                                               samples=samples, seed=seed)
    rows.append(
        Row(study, "Monte Carlo", method, advantage.name, aggregation.name, drift, horizon,
            group_size, 1, *({
                m: float(getattr(r, m)) for m in METRICS
            } for r in (estimate, error))))
  return rows


def identity_study(*, vocabulary: int, horizon: int, drift: float, instances: int,
                   seed: int) -> list[tuple]:
  """(weight, advantage, target, largest relative distance over instances) for the targets of
  methods E25.
  """
  tree = exact.make_tree(vocabulary, horizon, stop=True)
  problem = exact.random_problem(tree, (drift,), instances, seed)
  targets = stated_targets(problem)
  q_pi = exact.action_values(tree, problem.target_logits, problem.rewards)
  cases = [("full sequence", None, "grad J"), ("cumulative", q_pi, "grad J"),
           ("cumulative", None, "prefix pi, Q^mu"), ("cumulative", None, "grad J"),
           ("token", None, "prefix mu, Q^mu"), ("token", None, "grad J"), ("none", None, "grad J")]
  functions = {weight: exact_gradient.row_function(WEIGHTS[weight]) for weight, _, _ in cases}
  rows = []
  for weight, advantage, target in cases:
    moments = exact_gradient.single_sequence(problem, functions[weight], advantage)
    bias = exact_gradient.report(moments, targets[target]).bias
    rows.append((weight, "R - E[R]" if advantage is None else "Q^pi", target, float(bias.max())))
  return rows


def stated_targets(problem: exact.Problem) -> dict[str, np.ndarray]:
  """What the weights are unbiased for (methods E25), each [..., num_nodes, V] over the target's
  logits.

    grad J             sum_t E_{prefix ~ pi, a ~ pi} [Q^pi grad log pi], by autodiff of J
    prefix pi, Q^mu    sum_t E_{prefix ~ pi, a ~ pi} [Q^mu grad log pi]
    prefix mu, Q^mu    sum_t E_{prefix ~ mu, a ~ pi} [Q^mu grad log pi]
  """
  tree, target, behavior = problem.tree, problem.target_logits, problem.behavior_logits
  q_mu = exact.edge_values(tree, behavior, problem.rewards)
  action = np.exp(exact.log_softmax(target))
  out = {"grad J": exact.policy_gradient(tree, target, problem.rewards)}
  for name, logits in (("prefix pi, Q^mu", target), ("prefix mu, Q^mu", behavior)):
    weighted = exact.prefix_probs(tree, logits)[..., None] * action * q_mu
    out[name] = weighted - weighted.sum(-1, keepdims=True) * action
  return out


def ratio_variances(*, vocabulary: int, horizon: int, drift: float, instances: int,
                    seed: int) -> dict[str, np.ndarray]:
  """Exact Var_mu of each weight at position t, mean over instances: name -> [T]."""
  tree = exact.make_tree(vocabulary, horizon)
  problem = exact.random_problem(tree, (drift,), instances, seed)
  pi, mu = (
      exact.token_log_probs(tree, x)[0] for x in (problem.target_logits, problem.behavior_logits))
  probs = exact.sequence_probs(tree, problem.behavior_logits)[0][..., None]
  flat = tree.mask & np.ones_like(pi, bool)
  out = {}
  for name in ("token", "prefix geometric mean", "minpro", "cumulative", "full sequence"):
    weights = exact_gradient.row_function(WEIGHTS[name])(pi, mu, np.ones_like(pi), flat)[0]
    out[name] = np.mean(
        np.sum(probs * np.square(weights), 1) - np.square(np.sum(probs * weights, 1)), 0)
  return out


def log_ratio_range(*, vocabulary: int, horizon: int, drifts, instances: int,
                    seed: int) -> tuple[float, float]:
  """(smallest, largest) cumulative log-ratio in `single_study`'s problems, nats; to compare with
  the clamps.
  """
  problem = exact.random_problem(exact.make_tree(vocabulary, horizon), tuple(drifts), instances,
                                 seed)
  pi, mu = (exact.token_log_probs(problem.tree, x)
            for x in (problem.target_logits, problem.behavior_logits))
  sums = np.cumsum(pi - mu, -1)
  return float(sums.min()), float(sums.max())


def _compiled(cells):
  """Each cell with its two functions, made once per advantage and once per estimator and
  aggregation.
  """
  advantage_functions, coefficient_functions = {}, {}
  for method, estimator, advantage, aggregation in cells:
    pair = (estimator, aggregation)
    if advantage not in advantage_functions:
      advantage_functions[advantage] = exact_group.advantage_function(advantage)
    if pair not in coefficient_functions:
      coefficient_functions[pair] = exact_group.group_coefficient_function(*pair)
    yield method, estimator, advantage, aggregation, (advantage_functions[advantage],
                                                      coefficient_functions[pair])


def _without_weight(measured: Report, estimator: EstimatorConfig) -> Report:
  """A regularised loss has no weight that multiplies the advantage, so no effective share either.
  """
  if not estimators.spec(estimator.name).regularized:
    return measured
  return dataclasses.replace(measured, effective=np.full_like(measured.effective, np.nan))


def _stack(reports: list[Report]) -> Report:
  return Report(*(np.array([[getattr(r, m) for r in reports]]) for m in METRICS))


def _over_instances(measured: Report, index: int) -> tuple[dict, dict]:
  """(mean, standard error) over the instances of one drift."""
  values = {m: getattr(measured, m)[index] for m in METRICS}
  count = len(values["bias"])
  error = lambda v: float(np.std(v, ddof=1) / np.sqrt(count)) if count > 1 else float("nan")
  return {m: float(np.mean(v)) for m, v in values.items()}, {m: error(v) for m, v in values.items()}
