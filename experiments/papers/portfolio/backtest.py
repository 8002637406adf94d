"""Portfolios that are set at each close and held for a day, and what came of them."""

import dataclasses
from collections.abc import Callable

import numpy as np

from experiments.papers.portfolio.weights import MeanVariance, drifted

DRAWS, BLOCK = 2000, 20  # of the bootstrap; days of a block


@dataclasses.dataclass(frozen=True)
class Path:
  """A portfolio of T days.

  Attributes:
    first: row of its first close.
    weights: [T, A], set at the closes `first`, `first + 1`, ...
    before: [T, A], what they were before that trade; NaN on the first day.
    net: [T], return until the next close, after costs.
    traded: [T], sum of the changes of the weights.
  """

  first: int
  weights: np.ndarray
  before: np.ndarray
  net: np.ndarray
  traded: np.ndarray


def next_returns(prices: np.ndarray) -> np.ndarray:
  """Returns the return from each close to the next, [D - 1, A]."""
  return prices[1:] / prices[:-1] - 1


def follow(returns: np.ndarray, first: int, rule: MeanVariance,
           choose: Callable[[int, np.ndarray | None], np.ndarray]) -> Path:
  """Returns the path of the weights that `choose` sets at each close.

  Args:
    returns: [D - 1, A], from each close to the next; row t is read after the weights of close t.
    first: row of the first close.
    rule: says what a trade costs.
    choose: (row of the close, weights before the trade or None) -> weights [A].
  """
  size = returns.shape[1]
  before, rows = None, []
  for t in range(first, len(returns)):
    w = choose(t, before)
    rows.append((w, np.full(size, np.nan) if before is None else before,
                 rule.net(w, before, returns[t]), rule.traded(w, before)))
    before = drifted(w, returns[t])
  columns = [np.array(column) for column in zip(*rows, strict=True)]
  return Path(first, *columns)


def fixed(w: np.ndarray) -> Callable:
  """Returns a choice of the same weights [A] every day."""
  return lambda t, before: w


def wealth(net: np.ndarray) -> np.ndarray:
  """Returns the value [T + 1] of 1 after each day, from 1 at the first close."""
  return np.concatenate([[1.0], np.cumprod(1 + net)])


def cumulative(net: np.ndarray) -> float:
  """Returns the gain over all days, in multiples of what was put in."""
  return float(wealth(net)[-1] - 1)


def sharpe(net: np.ndarray, days: int) -> float:
  """Returns the Sharpe ratio of a year of `days`, for a riskless return of 0; 0 without risk."""
  deviation = float(np.std(net, ddof=1))
  return float(np.mean(net) / deviation * np.sqrt(days)) if deviation > 0 else 0.0


def drawdown(net: np.ndarray) -> float:
  """Returns the largest fall from an earlier value, relative to it, in [-1, 0]."""
  value = wealth(net)
  return float((value / np.maximum.accumulate(value) - 1).min())


def fall_of_the_curve(net: np.ndarray) -> float:
  """Returns the largest fall of the cumulative return, as a difference: no share of anything.

  The first version of arXiv 2508.16378 prints this difference with a percent sign.
  """
  value = wealth(net)
  return float((value - np.maximum.accumulate(value)).min())


def bootstrap(net: np.ndarray, other: np.ndarray, days: int, seed: int = 0, block: int = BLOCK,
              draws: int = DRAWS) -> tuple[float, float]:
  """Returns the 95 % interval of the difference of two Sharpe ratios, resampled in pairs.

  A resample is blocks of consecutive days from random places of the circle of days, the same for
  both: what the two have in common does not widen the interval, and dependence within a block is
  kept. A path is refused that is shorter than two blocks.

  Args:
    net, other: [T], of the same days.
    days: of the year of the Sharpe ratio.

  Raises:
    ValueError: lengths that differ, or fewer days than two blocks.

  Source: D. Politis and J. Romano (1992), the circular block bootstrap.
  """
  if len(net) != len(other) or len(net) < 2 * block:
    raise ValueError(f"{len(net)} and {len(other)} days, blocks of {block}: the same days, at "
                     "least two blocks, were expected. Fix: more days or a smaller block.")
  rng = np.random.default_rng(seed)
  starts = rng.integers(0, len(net), (draws, -(-len(net) // block)))
  rows = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, :len(net)] % len(net)

  def ratios(values):
    deviation = values.std(1, ddof=1)
    return values.mean(1) / np.where(deviation > 0, deviation, np.inf) * np.sqrt(days)

  low, high = np.quantile(ratios(net[rows]) - ratios(other[rows]), (0.025, 0.975))
  return float(low), float(high)
