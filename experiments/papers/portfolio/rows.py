"""The rows of a page: portfolios of the same days, their measures, the published ones beside."""

import numpy as np

from experiments.papers.portfolio import backtest, simulation
from experiments.papers.portfolio.backtest import Path
from experiments.papers.portfolio.weights import MeanVariance
from experiments.tables_lib.page_parts import narrow_tables

TECHNICAL, VADER, BOTH = "technical", "VADER", "technical and VADER"
SOURCE = "arXiv 2508.16378, second-hand"
# cumulative return, Sharpe ratio, "drawdown" in %: of versions 1 and 2.
FIRST_VERSION = {"Bitcoin": (8.85, 0.8853, -4.48), "equal": (21.65, 1.0194, -11.02)}
SECOND_VERSION = {"equal": (2.39, 0.5823, 75.06), TECHNICAL: (4.85, 0.7026, 83.07),
                  VADER: (2.69, 0.5976, 88.99), BOTH: (6.06, 0.7102, 81.95)}
HEADER = ("portfolio", "cumulative return", "Sharpe, 252 days", "Sharpe, 365 days",
          "largest fall, %", "turnover a day", "Sharpe (365) - technical")
PUBLISHED = ("portfolio", "version", "cumulative return", "here", "Sharpe", "here, 252 days",
             "drawdown, %", "here, %", "here, fall of the curve")


def simple_paths(prices: np.ndarray, first: int, rule: MeanVariance) -> dict[str, Path]:
  """Returns the paths of the first asset, of equal weights, and of mean-variance without signals.

  Equal weights are set again each day, and pay for it.

  Args:
    prices: [D, A].
    first: row of the first close.
  """
  returns, size = backtest.next_returns(prices), prices.shape[1]
  plain = simulation.market_of(prices, np.zeros(prices.shape), rule, technical=False)
  technical = simulation.market_of(prices, np.zeros(prices.shape), rule)

  def path(choose):
    return backtest.follow(returns, first, rule, choose)

  return {
      "first": path(backtest.fixed(np.eye(size)[0])),
      "equal": path(backtest.fixed(np.full(size, 1 / size))),
      "mean-variance": path(plain.choice()),
      TECHNICAL: path(technical.choice()),
  }


def measures(path: Path, other: Path) -> dict:
  """Returns what the table shows of a path, compared with another one of the same days."""
  low, high = backtest.bootstrap(path.net, other.net, 365)
  return {"days": len(path.net), "cumulative": backtest.cumulative(path.net),
          "sharpe_252": backtest.sharpe(path.net, 252),
          "sharpe_365": backtest.sharpe(path.net, 365), "drawdown": backtest.drawdown(path.net),
          "fall": backtest.fall_of_the_curve(path.net), "turnover": float(path.traded[1:].mean()),
          "difference": backtest.sharpe(path.net, 365) - backtest.sharpe(other.net, 365),
          "interval": [low, high]}


def table(rows: dict[str, dict]) -> str:
  """Returns the table of measures by portfolio; the technical one is compared with."""
  lines = [(name, f"{row['cumulative']:.3g}", f"{row['sharpe_252']:.3f}",
            f"{row['sharpe_365']:.3f}", f"{100 * row['drawdown']:.1f}", f"{row['turnover']:.2f}",
            "" if name == TECHNICAL else
            f"{row['difference']:+.2f} ({row['interval'][0]:+.2f} to {row['interval'][1]:+.2f})")
           for name, row in rows.items()]
  return narrow_tables(HEADER, lines)


def published_table(rows: dict[str, dict]) -> str:
  """Returns the published numbers beside those of the same rows here."""
  lines = []
  for version, numbers in (("1", FIRST_VERSION), ("2", SECOND_VERSION)):
    for name, (gain, sharpe, fall) in numbers.items():
      row = rows.get(name)
      here = ["-"] * 4 if row is None else [
          f"{row['cumulative']:.2f}", f"{row['sharpe_252']:.4f}", f"{100 * row['drawdown']:.1f}",
          f"{row['fall']:.2f}"]
      lines.append((name, version, f"{gain}", here[0], f"{sharpe}", here[1], f"{fall}", *here[2:]))
  return narrow_tables(PUBLISHED, lines, 2)
