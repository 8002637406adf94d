"""Paired differences, and baselines of the policy against those estimated from a group's rows."""

import numpy as np
import pytest

from experiments.tables_lib.exact import comparisons, exact, moments, studies
from jaxrl_llm.config import AdvantageConfig, AggregationConfig, EstimatorConfig

TREE = {"vocabulary": 2, "horizon": 3, "seed": 1}
GROUP, INSTANCES = 3, 4


def row(method, values, drift=0.3):
  values = {"bias": np.array(values)}
  mean, error = ({"bias": f(values["bias"])} for f in (np.mean, studies.standard_error))
  return studies.TableRow("weights", "exact", method, "", "", drift, 6, 1, len(values), mean, error,
                          values)


def test_what_instances_share_is_left_out_of_a_difference():
  shared = np.random.default_rng(0).normal(1, 0.3, 50)
  rows = [row("a", shared + 0.02), row("b", shared), row("a", shared, 0.6), row("b", shared, 0.6)]
  first, second = comparisons.differences(rows, [("a", "b")], "bias")
  assert first.mean == pytest.approx(0.02) and first.error < 1e-9 and second.mean == 0
  assert first.relative == pytest.approx(0.02 / shared.mean())
  apart = np.hypot(rows[0].error["bias"], rows[1].error["bias"])
  assert apart > 0.02, "errors of the two means would not resolve it"


def test_the_optimal_baseline_minimises_its_surrogate():
  tree = exact.make_tree(3, 3, stop=True)
  case = exact.random_case(tree, (0.0,), 1, 0)
  best = comparisons.optimal_baseline(case)[0, 0]
  probs, energy = (f(tree, case.behavior_logits)[0, 0] for f in (exact.sequence_probs,
                                                                 moments.score_energy))
  weight = np.cumsum(energy, -1) * tree.mask

  def surrogate(baseline):
    return np.sum(probs[:, None] * weight * np.square(case.rewards[0, 0][:, None] - baseline), 0)

  assert all(np.all(surrogate(best) < surrogate(best + step)) for step in (-0.01, 0.01))
  mean = np.sum(probs * case.rewards[0, 0])
  assert np.all(surrogate(best) < surrogate(mean)), "the mean reward would pass too"


@pytest.mark.slow
def test_a_known_baseline_of_zero_agrees_with_the_sum_over_groups():
  known = comparisons.population_baselines(drift=0.0, group_size=GROUP, instances=INSTANCES, **TREE)
  cells = [(name, EstimatorConfig("reinforce"), AdvantageConfig(name),
            AggregationConfig("sequence_sum")) for name in ("none", "rloo")]
  none, rloo = studies.group_study(
      "s", cells, studies.Population(TREE["vocabulary"], INSTANCES, TREE["seed"]), drift=0.0,
      group_size=GROUP, horizon=TREE["horizon"])
  np.testing.assert_allclose(known["none"], none.values["variance"], rtol=1e-5)
  assert np.all(known["mean"] < rloo.values["variance"]), "an estimated baseline adds variance"
