"""Verdicts on a day's scores, and what each of them is worth: a table [days, 3^A].

A verdict keeps, zeroes or flips the score of each asset. Its reward is the day's return after costs
with the verified scores minus that with the scores as they are, both from the weights that the
unverified portfolio had before the trade. So a day does not depend on earlier verdicts, and the
table holds every reward there is: the exact optimum and the regret of any policy follow from it.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path as FilePath

import numpy as np

from experiments.papers.portfolio.backtest import Path
from experiments.papers.portfolio.forecasts import Forecast
from experiments.papers.portfolio.weights import MeanVariance
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.store.files import write_atomically

LETTERS = "KZF"  # keep, zero, flip
FACTORS = (1.0, 0.0, -1.0)


@functools.cache
def all_verdicts(assets: int) -> tuple[str, ...]:
  """Returns the 3^A verdicts in the order of the table's columns; the first keeps every score."""
  return tuple("".join(letters) for letters in itertools.product(LETTERS, repeat=assets))


def column_of(verdict: str, assets: int) -> int | None:
  """Returns the table's column of a text; None if it is no verdict on this number of assets."""
  if len(verdict) != assets or set(verdict) - set(LETTERS):
    return None
  return functools.reduce(lambda column, letter: 3 * column + LETTERS.index(letter), verdict, 0)


def factors(verdict: str) -> np.ndarray:
  """Returns what a verdict multiplies the scores with, [A]."""
  return np.array([FACTORS[LETTERS.index(letter)] for letter in verdict])


def verified(signals: np.ndarray, verdict: str) -> np.ndarray:
  """Returns a day's signals [A, K] with the last one, the score, as the verdict leaves it."""
  out = signals.copy()
  out[:, -1] *= factors(verdict)
  return out


@dataclasses.dataclass(frozen=True)
class Market:
  """What a table is made from: forecast, signals [D, A, K] with the score last, and the rule."""

  forecast: Forecast
  signals: np.ndarray
  rule: MeanVariance

  def weights(self, t: int, before: np.ndarray | None, verdict: str) -> np.ndarray:
    """Returns the weights [A] at close t with the scores that a verdict leaves."""
    return self.day_weights(t, before)(verdict)

  def day_weights(self, t: int, before: np.ndarray | None) -> Callable[[str], np.ndarray]:
    """Returns the function from a verdict to the weights [A] at close t."""
    solve = self.rule.solver(self.forecast.covariance[t], before)
    return lambda verdict: solve(self.forecast.expected(t, verified(self.signals[t], verdict)))

  def choice(self, by_day: dict[int, str] | None = None) -> Callable:
    """Returns the choice of `backtest.follow` with the scores that each day's verdict leaves.

    Args:
      by_day: verdict by the row of the close; None, or a row without one: the scores as they are.
    """
    unverified = LETTERS[0] * self.signals.shape[1]
    return lambda t, before: self.weights(t, before, (by_day or {}).get(t, unverified))


def reward_table(market: Market, path: Path, returns: np.ndarray,
                 expected: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns the rewards [T, 3^A] of all verdicts on the days of the unverified path.

  A score of 0 is the same after every verdict, so that equal problems are solved once.

  Args:
    path: of the weights with the scores as they are.
    returns: [D - 1, A], from each close to the next.
    expected: [D - 1, A], their true means, where the market is simulated.

  Returns:
    (rewards by the returns, rewards by their true means or None).
  """
  names = all_verdicts(returns.shape[1])
  tables = np.zeros((2, len(path.net), len(names)))
  for i in range(len(path.net)):
    t, before = path.first + i, None if np.isnan(path.before[i]).any() else path.before[i]
    weights = market.day_weights(t, before)
    solved: dict[bytes, np.ndarray] = {}
    for column, verdict in enumerate(names):
      key = (market.signals[t, :, -1] * factors(verdict) + 0.0).tobytes()
      if key not in solved:
        solved[key] = weights(verdict)
      for table, gains in zip(tables, (returns, expected), strict=True):
        if gains is not None:
          table[i, column] = market.rule.net(solved[key], before, gains[t])
  tables -= tables[:, :, :1]
  return tables[0], None if expected is None else tables[1]


def regret(table: np.ndarray, columns: np.ndarray) -> np.ndarray:
  """Returns how much less than the day's best verdict the chosen columns [T] are worth, [T]."""
  return table.max(1) - np.take_along_axis(table, columns[:, None], 1)[:, 0]


@dataclasses.dataclass(frozen=True)
class Day:
  """A day of a table, as the task asks for a verdict on it.

  Attributes:
    name: unique.
    prompt: what the policy reads.
    rewards: [3^A], by the day's returns.
    expected: [3^A], by their true means; where they are unknown, the rewards.
    kinds: of the assets' items, one letter each; empty: unknown.
    heldout: whether it is not trained on.
  """

  name: str
  prompt: str
  rewards: np.ndarray
  expected: np.ndarray
  kinds: str = ""
  heldout: bool = False

  @property
  def assets(self) -> int:
    return round(np.log(len(self.rewards)) / np.log(3))


def write_days(path: FilePath, days: list[Day]) -> None:
  """Writes days as JSON lines."""
  lines = [json.dumps(dataclasses.asdict(day) | {"rewards": day.rewards.tolist(),
                                                 "expected": day.expected.tolist()})
           for day in days]
  write_atomically(path, "\n".join(lines) + "\n")


def read_days(path: str) -> list[Day]:
  """Returns the days of a file of `write_days`.

  Raises:
    ConfigError: no such file, or a line that is no day; names file and line.
  """
  try:
    lines = FilePath(path).read_text(encoding="utf-8").splitlines()
  except OSError as error:
    raise ConfigError(f"{path}: cannot be read: {error}. Fix: a file that table.py --days wrote."
                      ) from error
  days = []
  for number, line in enumerate(lines, 1):
    try:
      row = json.loads(line)
      row |= {name: np.array(row[name], float) for name in ("rewards", "expected")}
      day = Day(**row)
      if len(day.rewards) != 3**max(day.assets, 1) or len(day.expected) != len(day.rewards):
        raise ValueError(f"{len(day.rewards)} rewards are no power of 3")
    except (ValueError, TypeError, KeyError) as error:
      raise ConfigError(f"{path}:{number}: no day of a table: {error}. Fix: a file that table.py "
                        "--days wrote.") from error
    days.append(day)
  return days
