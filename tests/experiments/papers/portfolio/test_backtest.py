"""The backtest reads nothing of the future; its measures are empyrical's or made by hand."""

import numpy as np
import pytest

from experiments.papers.portfolio import backtest, rows, simulation
from experiments.papers.portfolio.weights import MeanVariance

NET = 0.03 * np.random.default_rng(0).normal(size=400) + 0.001
RULE = MeanVariance()


def simulated_market(days: int = 60, seed: int = 0):
  drawn = simulation.simulate(seed, days, 0.5, 0.25, 0.03, 0.03)
  return drawn.closes.prices, drawn.scores


def all_weights(prices, scores) -> dict[str, np.ndarray]:
  """Weights of every portfolio of the page, and of all signals."""
  returns = backtest.next_returns(prices)
  market = simulation.market_of(prices, scores, RULE)
  paths = rows.simple_paths(prices, market.forecast.first, RULE)
  paths["all signals"] = simulation.unverified(market, returns)
  return {name: path.weights for name, path in paths.items()}


def earliest_change(weigh, change: int) -> int:
  """Returns the first day whose weights differ when all after close `change` is different."""
  prices, scores = simulated_market()
  other_prices, other_scores = prices.copy(), scores.copy()
  other_prices[change + 1:] *= np.linspace(0.5, 2.0, prices.shape[1])
  other_scores[change + 1:] *= -1
  before, after = weigh(prices, scores), weigh(other_prices, other_scores)
  days = [np.flatnonzero(np.abs(before[name] - after[name]).max(1) > 0) for name in before]
  return min((int(day[0]) for day in days if len(day)), default=10**6)


def test_no_weight_depends_on_later_prices_or_headlines():
  pytest.importorskip("clarabel", reason="clarabel is not installed")
  change = simulation.HISTORY + 30
  first = simulation.market_of(*simulated_market(), RULE).forecast.first

  def peeking(prices, scores):  # a wrong one: tomorrow's score counts today
    return all_weights(prices, np.roll(scores, -1, 0))

  def early(prices, scores):  # a wrong one: tomorrow's close is known
    return {name: np.roll(w, -1, 0) for name, w in all_weights(prices, scores).items()}

  assert first + earliest_change(all_weights, change) == change + 1
  for wrong in (peeking, early):
    assert first + earliest_change(wrong, change) <= change


def test_a_path_by_hand():
  returns = np.array([[0.5, 0.0], [0.0, -0.5], [0.1, 0.1]])
  rule = MeanVariance(cost=0.01)
  path = backtest.follow(returns, 1, rule, backtest.fixed(np.array([0.5, 0.5])))
  np.testing.assert_allclose(path.traded, [1.0, 1 / 3])  # (2/3, 1/3) after the first day
  np.testing.assert_allclose(path.net, [0.99 * 0.75 - 1, (1 - 0.01 / 3) * 1.1 - 1])
  np.testing.assert_allclose(path.before[1], [2 / 3, 1 / 3])
  assert path.first == 1 and np.isnan(path.before[0]).all()


def test_drawdown_and_sharpe_are_those_of_empyrical():
  empyrical = pytest.importorskip("empyrical", reason="empyrical is not installed: "
                                  "pip install empyrical-reloaded")
  for net in (NET, -np.abs(NET), np.abs(NET)):
    assert backtest.drawdown(net) == pytest.approx(empyrical.max_drawdown(net), abs=1e-12)
    assert backtest.cumulative(net) == pytest.approx(empyrical.cum_returns_final(net), abs=1e-9)
    for days in (252, 365):
      assert backtest.sharpe(net, days) == pytest.approx(
          empyrical.sharpe_ratio(net, annualization=days), abs=1e-9)
