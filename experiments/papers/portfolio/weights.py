"""Long-only mean-variance weights with a cap and a bound on the turnover."""

import dataclasses

import numpy as np

from jaxrl_llm.fields import ConfigError

SLACK = 1e-9  # added to a bound that drifted weights cannot meet, so that rounding does not


@dataclasses.dataclass(frozen=True)
class MeanVariance:
  """The weights of a day, and what changing to them costs.

    maximise  mean w - risk w' covariance w
    such that 0 <= w <= cap,   sum w = 1,   sum |w - before| <= turnover

  Attributes:
    risk: aversion per unit of daily variance. Whether the paper halves it is unconfirmed.
    cap: most of one asset.
    turnover: most of sum |w - before| in a day.
    cost: share of the turnover that is paid; no part of what is maximised.

  Source: arXiv 2508.16378, second-hand.
  """

  risk: float = 2.0
  cap: float = 0.4
  turnover: float = 0.8
  cost: float = 0.001

  def solve(self, mean: np.ndarray, covariance: np.ndarray,
            before: np.ndarray | None = None) -> np.ndarray:
    """Returns the weights [A], by Clarabel's interior-point method.

    Where prices moved weights so far above the cap that the turnover does not suffice to mend it,
    the bound is what does.

    Args:
      mean: [A], expected returns.
      covariance: [A, A].
      before: [A], weights before the trade; None: nothing is held, and there is no bound.

    Raises:
      ConfigError: the cap is too small for the number of assets, or Clarabel is not installed.
      RuntimeError: no solution was reached.
    """
    size = len(mean)
    if self.cap * size < 1:
      raise ConfigError(f"cap = {self.cap} with {size} assets: their weights cannot add up to 1. "
                        f"Fix: a cap of at least {1 / size:.3g}.")
    bounded = before is not None
    P, q = _objective(mean, covariance, self.risk, bounded)
    A, b, equalities = _constraints(self, size, before)
    solution = _clarabel(P, q, A, b, equalities)
    w = np.clip(solution[:size], 0.0, self.cap)
    return w / w.sum()

  def traded(self, w: np.ndarray, before: np.ndarray | None) -> float:
    """Returns sum |w - before|; 1 where nothing was held."""
    return float(np.abs(w - (0 if before is None else before)).sum())

  def net(self, w: np.ndarray, before: np.ndarray | None, returns: np.ndarray) -> float:
    """Returns the day's return [A] -> scalar after costs: (1 - cost traded)(1 + w returns) - 1."""
    return float((1 - self.cost * self.traded(w, before)) * (1 + w @ returns) - 1)


def drifted(w: np.ndarray, returns: np.ndarray) -> np.ndarray:
  """Returns what weights [A] have become after a day's returns [A]."""
  value = w * (1 + returns)
  return value / value.sum()


def _objective(mean, covariance, risk: float, bounded: bool):
  """Returns Clarabel's P and q of x = (w, u), of which u is there with a bound on the turnover."""
  size = len(mean)
  P = np.zeros((size * (1 + bounded),) * 2)
  P[:size, :size] = 2 * risk * covariance
  return P, np.concatenate([-mean, np.zeros(size * bounded)])


def _constraints(rule: MeanVariance, size: int, before: np.ndarray | None):
  """Returns (A, b, number of equalities) of A x + s = b, the other rows with s >= 0."""
  eye, zero = np.eye(size), np.zeros((size, size))
  if before is None:
    A = np.vstack([np.ones((1, size)), -eye, eye])
    return A, np.concatenate([[1.0], np.zeros(size), np.full(size, rule.cap)]), 1
  least = 2 * np.maximum(before - rule.cap, 0).sum() + SLACK
  A = np.block([
      [np.ones((1, size)), np.zeros((1, size))],
      [-eye, zero], [eye, zero],
      [eye, -eye], [-eye, -eye],
      [np.zeros((1, size)), np.ones((1, size))],
  ])
  return A, np.concatenate([[1.0], np.zeros(size), np.full(size, rule.cap), before, -before,
                            [max(rule.turnover, least)]]), 1


def _clarabel(P, q, A, b, equalities: int) -> np.ndarray:
  """Returns x of: minimise x'Px / 2 + q'x, A x + s = b, s = 0 in the equalities, else s >= 0."""
  try:
    import clarabel
  except ImportError as error:
    raise ConfigError("mean-variance weights are solved by clarabel, which is not installed. "
                      "Fix: pip install -e '.[portfolio]'") from error
  from scipy import sparse

  settings = clarabel.DefaultSettings()
  settings.verbose = False
  settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
  cones = [clarabel.ZeroConeT(equalities), clarabel.NonnegativeConeT(len(b) - equalities)]
  solver = clarabel.DefaultSolver(sparse.csc_matrix(np.triu(P)), q, sparse.csc_matrix(A), b, cones,
                                  settings)
  solution = solver.solve()
  if str(solution.status) not in ("Solved", "AlmostSolved"):
    raise RuntimeError(f"Clarabel: {solution.status} for mean {-q[:5]}")
  return np.array(solution.x)
