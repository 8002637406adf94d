"""Multisets against ordered groups, sampling against enumeration, windows in closed form."""

import itertools

import numpy as np
import pytest

from experiments.tables_lib.exact import exact, exact_group, monte_carlo, studies
from experiments.tables_lib.exact.moments import report
from jaxrl_llm.config import AdvantageConfig, AggregationConfig, EstimatorConfig

GROUP = 3


@pytest.fixture(scope="module")
def case():
  tree = exact.make_tree(2, 3, stop=True)
  return exact.select(exact.random_case(tree, (0.4,), 1, seed=3), 0, 0)


def functions(estimator="ppo", advantage="grpo", aggregation="token"):
  return (exact_group.advantage_function(AdvantageConfig(advantage)),
          exact_group.group_coefficient_function(EstimatorConfig(estimator),
                                                 AggregationConfig(aggregation)))


def test_tree_holds_every_sequence_once():
  tree = exact.make_tree(3, 4, stop=True)
  assert len(tree.tokens) == 31 and tree.num_nodes == 15
  rows = {tuple(t[m]) for t, m in zip(tree.tokens, tree.mask, strict=True)}
  assert len(rows) == 31
  assert all(2 not in row[:-1] and (row[-1] == 2 or len(row) == 4) for row in rows)
  assert len(exact.make_tree(3, 4).tokens) == 81
  with pytest.raises(ValueError, match="vocabulary 1"):
    exact.make_tree(1, 4)


@pytest.mark.parametrize("advantage, aggregation", [("grpo", "token"), ("rloo", "sequence"),
                                                    ("opo", "balanced")])
def test_multisets_stand_for_ordered_groups(case, advantage, aggregation):
  pair = functions(advantage=advantage, aggregation=aggregation)
  probs = exact.sequence_probs(case.tree, case.behavior_logits)
  count = len(probs)
  groups = exact_group.multisets(count, GROUP)
  short = exact_group.group_moments(case, groups, *pair)
  ordered = np.array(list(itertools.product(range(count), repeat=GROUP)), np.int32)
  long = exact_group.group_samples(case, ordered, *pair).moments(np.prod(probs[ordered], -1))
  for name in ("mean", "square", "effective"):
    np.testing.assert_allclose(getattr(short, name), getattr(long, name), rtol=1e-6, atol=1e-8)
  samples = exact_group.group_samples(case, groups, *pair)
  without_permutations = samples.moments(np.prod(probs[groups], -1))
  assert np.abs(without_permutations.mean - long.mean).max() > 1e-4


def test_multiset_probabilities_sum_to_one():
  groups = exact_group.multisets(5, 4)
  probs = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
  np.testing.assert_allclose(exact_group.multiset_probs(groups, probs).sum(), 1)
  with pytest.raises(ValueError, match="at most"):
    exact_group.multisets(81, 4)


@pytest.mark.slow
def test_leave_one_out_baseline_is_unbiased_and_the_group_mean_shrinks(case):
  target = exact.policy_gradient(case.tree, case.target_logits, case.rewards)
  groups = exact_group.multisets(len(case.tree.tokens), GROUP)
  reports = {}
  for name in ("none", "rloo", "dr_grpo"):
    pair = functions("seq_is", name, "sequence_sum")
    moments = exact_group.group_moments(case, groups, *pair)
    reports[name] = report(moments, target)
  assert reports["none"].bias < 1e-6
  # Off-policy, the other rows' rewards are still independent of this row: rloo stays unbiased.
  assert reports["rloo"].bias < 1e-6
  assert reports["dr_grpo"].bias == pytest.approx(1 / GROUP, abs=1e-6)
  assert reports["rloo"].noise == pytest.approx(reports["dr_grpo"].noise, rel=1e-5)


@pytest.mark.slow
def test_sampling_agrees_with_enumeration(case):
  target = exact.policy_gradient(case.tree, case.target_logits, case.rewards)
  pair = functions()
  groups = exact_group.multisets(len(case.tree.tokens), GROUP)
  truth = report(exact_group.group_moments(case, groups, *pair), target)
  estimate, error = monte_carlo.group_report(case, pair, target, group_size=GROUP,
                                             samples=20_000, seed=0)

  def away(report, name):
    return abs(getattr(report, name) - getattr(truth, name)) / getattr(error, name)

  for name in studies.METRICS:
    assert getattr(error, name) > 0 and away(estimate, name) < 4, name
  other, _ = monte_carlo.group_report(case, functions(advantage="dr_grpo"), target,
                                      group_size=GROUP, samples=20_000, seed=0)
  assert away(other, "variance") > 4
  with pytest.raises(ValueError, match="multiple"):
    monte_carlo.group_report(case, pair, target, group_size=GROUP, samples=30, seed=0)


def test_window_simulation_agrees_with_the_closed_form():
  estimator = EstimatorConfig("ctpo", log_low=0.025, log_high=0.05, log_dual=0.05, power=0.5)
  window = monte_carlo.window_study(estimator, sigmas=(0.05,), length=100, rows=1000, seed=0)[0.05]
  at = [0, 9, 99]
  # worked out by hand from the normal distribution
  np.testing.assert_allclose(window.closed_form[at], [0.470, 0.477, 0.507], atol=5e-4)
  assert (np.abs(window.simulated - window.closed_form) < 5 * window.error).all()
  assert abs(window.slope - 0.5) < 0.05
  fixed = monte_carlo.closed_form_outside(
      EstimatorConfig("ctpo", log_low=0.025, log_high=0.05, power=0.0), 0.05, np.arange(1, 101))
  assert (np.abs(fixed - window.simulated) > 5 * window.error)[-1]
  with pytest.raises(ValueError, match="log_dual"):
    monte_carlo.window_study(EstimatorConfig("ctpo", log_high=0.1, log_dual=0.2), sigmas=(0.1,),
                             length=2, rows=2, seed=0)
