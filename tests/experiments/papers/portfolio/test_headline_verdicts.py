"""The table of all verdicts: its columns, its cells, and what they do not depend on."""

import numpy as np
import pytest

from experiments.papers.portfolio import backtest, simulation, verdicts
from experiments.papers.portfolio.weights import MeanVariance

RULE = MeanVariance()


@pytest.fixture(scope="module")
def table():
  pytest.importorskip("clarabel", reason="clarabel is not installed")
  drawn = simulation.simulate(3, 3, 0.5, 0.25, 0.03, 0.03)
  market = simulation.market_of(drawn.closes.prices, drawn.scores, RULE)
  returns = backtest.next_returns(drawn.closes.prices)
  path = simulation.unverified(market, returns)
  rewards, expected = verdicts.reward_table(market, path, returns, drawn.true_means)
  return drawn, market, returns, path, rewards, expected


def test_every_verdict_has_its_column():
  names = verdicts.all_verdicts(5)
  assert len(names) == 243 and names[0] == "KKKKK" and names[-1] == "FFFFF"
  assert [verdicts.column_of(name, 5) for name in names] == list(range(243))
  for text in ("", "KKKK", "KKKKKK", "KKKKk", "KKKK+"):
    assert verdicts.column_of(text, 5) is None


def test_cells_are_what_the_portfolio_would_have_gained(table):
  drawn, market, returns, path, rewards, expected = table
  assert rewards.shape == expected.shape == (len(path.net), 243)
  np.testing.assert_array_equal(rewards[:, 0], 0)
  for i, verdict in ((0, "FZKKF"), (1, "ZZZZZ"), (2, "FFFFF")):
    t, before = path.first + i, None if i == 0 else path.before[i]
    signals = market.signals[t].copy()
    signals[:, -1] *= [{"K": 1, "Z": 0, "F": -1}[letter] for letter in verdict]
    mean = market.forecast.mean[t] + (
        market.forecast.slopes[t] * (signals - market.forecast.centers[t])).sum(-1)
    w = RULE.solve(mean, market.forecast.covariance[t], before)
    column = verdicts.column_of(verdict, 5)
    for cells, gains in ((rewards, returns), (expected, drawn.true_means)):
      gain = RULE.net(w, before, gains[t]) - RULE.net(path.weights[i], before, gains[t])
      assert cells[i, column] == pytest.approx(gain, abs=1e-9)


def test_rewards_do_not_depend_on_earlier_verdicts(table):
  """The weights before a trade are the unverified path's; a table of the policy's would differ."""
  _, market, returns, path, rewards, _ = table
  flipped = backtest.follow(returns, path.first, RULE,
                            market.choice({path.first: "FFFFF", path.first + 1: "FFFFF"}))
  assert not np.allclose(flipped.before[1], path.before[1])
  assert rewards[1, -1] != pytest.approx(flipped.net[1] - path.net[1], abs=1e-7)
