"""Mean-variance weights: the constraints, and cvxpy's solution of the same problem."""

import dataclasses

import numpy as np
import pytest

from experiments.papers.portfolio.weights import MeanVariance, drifted
from jaxrl_llm.fields import ConfigError

pytest.importorskip("clarabel", reason="clarabel is not installed: pip install -e '.[portfolio]'")
CASES = range(40)


def random_problem(seed: int):
  rng = np.random.default_rng(seed)
  size = int(rng.integers(3, 7))
  factor = 0.04 * rng.normal(size=(size, size + 2))
  before = rng.dirichlet(np.full(size, 0.7)) if seed % 4 else None
  return 0.01 * rng.normal(size=size), factor @ factor.T / size, before


def violation(rule: MeanVariance, w, before) -> float:
  """Returns how far weights are from the nearest constraint that they break."""
  bound = rule.turnover if before is None else max(
      rule.turnover, 2 * np.maximum(before - rule.cap, 0).sum())
  return max(0.0, -w.min(), w.max() - rule.cap, abs(w.sum() - 1),
             0.0 if before is None else np.abs(w - before).sum() - bound)


@pytest.mark.parametrize("seed", CASES)
def test_constraints_hold_to_a_millionth(seed):
  mean, covariance, before = random_problem(seed)
  rule = MeanVariance(turnover=0.3 + 0.5 * (seed % 2))
  assert violation(rule, rule.solve(mean, covariance, before), before) < 1e-6


@pytest.mark.parametrize("field, wrong", [("cap", 1.0), ("turnover", 10.0)])
def test_a_rule_without_a_bound_is_noticed(field, wrong):
  rule = MeanVariance(turnover=0.3)
  loose = dataclasses.replace(rule, **{field: wrong})
  worst = max(violation(rule, loose.solve(*problem), problem[2])
              for problem in map(random_problem, CASES))
  assert worst > 0.1


@pytest.mark.parametrize("seed", CASES)
def test_the_solution_is_that_of_cvxpy(seed):
  cp = pytest.importorskip("cvxpy", reason="cvxpy is not installed: pip install cvxpy-base")
  mean, covariance, before = random_problem(seed)
  rule = MeanVariance(turnover=0.5)
  w = cp.Variable(len(mean))
  limits = [w >= 0, w <= rule.cap, cp.sum(w) == 1]
  if before is not None:
    least = 2 * np.maximum(before - rule.cap, 0).sum()
    limits.append(cp.norm1(w - before) <= max(rule.turnover, least + 1e-9))
  goal = mean @ w - rule.risk * cp.quad_form(w, cp.psd_wrap(covariance))
  problem = cp.Problem(cp.Maximize(goal), limits)
  problem.solve(solver=cp.CLARABEL)
  weights = rule.solve(mean, covariance, before)
  value = mean @ weights - rule.risk * weights @ covariance @ weights
  assert value == pytest.approx(problem.value, abs=1e-8)
  np.testing.assert_allclose(weights, w.value, atol=1e-3)


def test_a_small_case_by_hand():
  """Without risk the best asset gets the cap, the next what is left."""
  rule = MeanVariance(risk=0.0)
  mean, covariance, before = np.array([3.0, 1.0, 2.0]), np.zeros((3, 3)), np.array([0.2, 0.4, 0.4])
  np.testing.assert_allclose(rule.solve(mean, covariance), [0.4, 0.2, 0.4], atol=1e-6)
  less = dataclasses.replace(rule, turnover=0.2)
  np.testing.assert_allclose(less.solve(mean, covariance, before), [0.3, 0.3, 0.4], atol=1e-6)


def test_costs_and_drift_by_hand():
  rule, w = MeanVariance(cost=0.01), np.array([0.5, 0.5])
  assert rule.net(w, np.array([0.3, 0.7]), np.array([0.2, 0.0])) == pytest.approx(
      0.996 * 1.1 - 1)
  assert rule.net(w, None, np.zeros(2)) == pytest.approx(-0.01)
  np.testing.assert_allclose(drifted(w, np.array([1.0, 0.0])), [2 / 3, 1 / 3])


def test_a_cap_that_leaves_no_portfolio_is_refused():
  with pytest.raises(ConfigError, match=r"cap = 0.4 with 2 assets.*at least 0.5"):
    MeanVariance().solve(np.zeros(2), np.eye(2))
