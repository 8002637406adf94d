"""Long-only mean-variance weights with a cap and a bound on the turnover."""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy import sparse

from jaxrl_llm.fields import ConfigError

EQUALITIES = 1  # the sum of the weights
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

  def solver(self, covariance: np.ndarray,
             before: np.ndarray | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function from expected returns [A] to weights [A], by Clarabel.

    Where prices moved weights so far above the cap that the turnover does not suffice to mend it,
    the bound is what does.

    Args:
      covariance: [A, A].
      before: [A], weights before the trade; None: nothing is held, and there is no bound.

    Raises:
      ConfigError: the cap is too small for the number of assets, or Clarabel is not installed.
      RuntimeError: of the function, where no solution was reached.
    """
    size = len(covariance)
    if self.cap * size < 1:
      raise ConfigError(f"cap = {self.cap} with {size} assets: their weights cannot add up to 1. "
                        f"Fix: a cap of at least {1 / size:.3g}.")
    A, b = _constraints(self, size, before)
    P = np.zeros((A.shape[1],) * 2)
    P[:size, :size] = 2 * self.risk * covariance
    minimise = _clarabel(P, A, b, EQUALITIES)

    def weights(mean: np.ndarray) -> np.ndarray:
      w = np.clip(minimise(np.concatenate([-mean, np.zeros(A.shape[1] - size)]))[:size], 0.0,
                  self.cap)
      return w / w.sum()

    return weights

  def solve(self, mean: np.ndarray, covariance: np.ndarray,
            before: np.ndarray | None = None) -> np.ndarray:
    """Returns the weights [A] at expected returns [A]; arguments and errors as `solver`."""
    return self.solver(covariance, before)(mean)

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


def _constraints(rule: MeanVariance, size: int, before: np.ndarray | None):
  """Returns (A, b) of A x + s = b with s = 0 in the first EQUALITIES rows, and else s >= 0.

  x is w, and with a bound on the turnover (w, u) with u >= |w - before|.
  """
  eye, zero = np.eye(size), np.zeros((size, size))
  if before is None:
    A = np.vstack([np.ones((1, size)), -eye, eye])
    return A, np.concatenate([[1.0], np.zeros(size), np.full(size, rule.cap)])
  least = 2 * np.maximum(before - rule.cap, 0).sum() + SLACK
  A = np.block([
      [np.ones((1, size)), np.zeros((1, size))],
      [-eye, zero], [eye, zero],
      [eye, -eye], [-eye, -eye],
      [np.zeros((1, size)), np.ones((1, size))],
  ])
  return A, np.concatenate([[1.0], np.zeros(size), np.full(size, rule.cap), before, -before,
                            [max(rule.turnover, least)]])


def _clarabel(P, A, b, equalities: int) -> Callable[[np.ndarray], np.ndarray]:
  """Returns the function from q to the x that minimises x'Px / 2 + q'x within `_constraints`."""
  try:
    import clarabel
  except ImportError as error:
    raise ConfigError("mean-variance weights are solved by clarabel, which is not installed. "
                      "Fix: pip install -e '.[portfolio]'") from error
  settings = clarabel.DefaultSettings()
  settings.verbose = False
  settings.presolve_enable = False  # so that q can be replaced
  settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
  cones = [clarabel.ZeroConeT(equalities), clarabel.NonnegativeConeT(len(b) - equalities)]
  solver = clarabel.DefaultSolver(sparse.csc_matrix(np.triu(P)), np.zeros(len(P)),
                                  sparse.csc_matrix(A), b, cones, settings)

  def minimiser(q: np.ndarray) -> np.ndarray:
    solver.update(q=q)
    solution = solver.solve()
    if str(solution.status) not in ("Solved", "AlmostSolved"):
      raise RuntimeError(f"Clarabel: {solution.status} for q = {q}")
    return np.array(solution.x)

  return minimiser
