"""The next day's return: the mean of a window, and a ridge regression on signals within it."""

import dataclasses

import numpy as np

WINDOW = 180  # days
ALPHAS = (0.1, 1.0, 10.0, 100.0)  # of the ridge; a window's leave-one-out error chooses


@dataclasses.dataclass(frozen=True)
class Forecast:
  """What is known at each close about the next day.

    expected return = mean + slopes (signals - centers)

  Attributes:
    mean: [D, A], of the window's returns.
    slopes: [D, A, K], in return per unit of a signal.
    centers: [D, A, K], mean signals of the window.
    covariance: [D, A, A], of the window's returns.
    All are NaN where a window is incomplete.
  """

  mean: np.ndarray
  slopes: np.ndarray
  centers: np.ndarray
  covariance: np.ndarray

  @property
  def first(self) -> int:
    """Returns the first day with a complete window."""
    return int(np.argmax(np.isfinite(self.mean).all(1)))

  def expected(self, t: int, signals: np.ndarray) -> np.ndarray:
    """Returns the returns [A] that are expected after close t at signals [A, K]."""
    return self.mean[t] + (self.slopes[t] * (signals - self.centers[t])).sum(-1)


def past_returns(prices: np.ndarray) -> np.ndarray:
  """Returns each day's return [D, A] since the close before; NaN on the first day."""
  return np.vstack([np.full(prices.shape[1:], np.nan), prices[1:] / prices[:-1] - 1])


def rolling_forecast(prices: np.ndarray, signals: np.ndarray, window: int = WINDOW,
                     alphas: tuple[float, ...] = ALPHAS) -> Forecast:
  """Fits, at each close t, the last `window` pairs of signals at s and return from s to s + 1.

  The last pair is (t - 1, t), so that nothing after t is read. Signals are standardised within the
  window, where a constant one gets slope 0. The intercept is the mean of the returns and is not
  penalised: the forecast at average signals is the mean. Whether the paper adds a fit with its
  intercept to the mean, which would count the mean twice, is unconfirmed.

  Args:
    prices: [D, A].
    signals: [D, A, K], NaN while unknown; K may be 0.

  Source: arXiv 2508.16378, second-hand.
  """
  days, assets, number = signals.shape
  out = Forecast(np.full((days, assets), np.nan), np.full(signals.shape, np.nan),
                 np.full(signals.shape, np.nan), np.full((days, assets, assets), np.nan))
  known = np.isfinite(signals).all((1, 2))
  start = int(np.argmax(known)) + window if known.any() else days
  if start >= days:
    return out
  view = np.lib.stride_tricks.sliding_window_view
  returns = view(past_returns(prices)[start - window + 1:], window, 0)  # [T, A, W], ends at t
  before = view(signals[start - window:-1], window, 0)  # [T, A, K, W], ends at t - 1
  out.mean[start:] = returns.mean(-1)
  centred = returns - returns.mean(-1, keepdims=True)
  out.covariance[start:] = np.einsum("taw,tbw->tab", centred, centred) / (window - 1)
  if number:
    out.centers[start:] = before.mean(-1)
    out.slopes[start:] = _ridge_slopes(before, centred, alphas)
  return out


def _ridge_slopes(signals: np.ndarray, centred: np.ndarray, alphas) -> np.ndarray:
  """Returns slopes [T, A, K] of signals [T, A, K, W] for centred returns [T, A, W].

  With X the standardised signals and X'X = V diag(d) V', the fit is X V diag(1 / (d + alpha)) V'X'y
  and a left-out residual is the residual over 1 - 1/W - (its diagonal).
  """
  scale = signals.std(-1, keepdims=True)
  constant = scale < 1e-12 * np.maximum(np.abs(signals).max(-1, keepdims=True), 1)
  scale = np.where(constant, 1.0, scale)
  x = np.where(constant, 0.0, (signals - signals.mean(-1, keepdims=True)) / scale)
  values, vectors = np.linalg.eigh(x @ np.swapaxes(x, -1, -2))
  u = np.swapaxes(vectors, -1, -2) @ x  # [T, A, K, W]
  projected = (u @ centred[..., None])[..., 0]
  best = np.full(centred.shape[:2], np.inf)
  coefficients = np.zeros(projected.shape)
  for alpha in alphas:
    weight = 1 / (np.maximum(values, 0) + alpha)
    residual = centred - np.einsum("tak,takw->taw", weight * projected, u)
    leverage = np.einsum("tak,takw->taw", weight, u**2) + 1 / x.shape[-1]
    error = ((residual / (1 - leverage))**2).sum(-1)
    better = error < best
    best = np.where(better, error, best)
    coefficients = np.where(better[..., None], weight * projected, coefficients)
  return (vectors @ coefficients[..., None])[..., 0] / scale[..., 0]
