"""The rolling ridge: a slow loop's slopes, the leave-one-out choice, and no look-ahead."""

import dataclasses
import functools

import numpy as np

from experiments.papers.portfolio import forecasts

ALPHAS = (0.1, 10.0, 1000.0)
WINDOW = 30


def random_market(days: int = 80, assets: int = 2, seed: int = 0):
  rng = np.random.default_rng(seed)
  signals = rng.normal(size=(days, assets, 3)) * [20, 0.5, 0.3] + [50, 0.5, 0]
  returns = 0.02 * rng.normal(size=(days, assets))
  returns[1:] += 0.03 * signals[:-1, :, 2]
  signals[:5] = np.nan
  return 100 * np.cumprod(1 + returns, 0), signals


def ridge(x, y, alpha: float):
  """Returns coefficients and intercept, the intercept not penalised."""
  design = np.column_stack([np.ones(len(x)), x])
  penalty = alpha * np.diag([0.0] + [1.0] * x.shape[1])
  solution = np.linalg.solve(design.T @ design + penalty, design.T @ y)
  return solution[1:], solution[0]


def slow_slopes(signals, returns, t: int, asset: int):
  """The slopes at close t, each left-out fit made separately; signals standardised beforehand."""
  x = np.array([signals[s, asset] for s in range(t - WINDOW, t)])
  y = np.array([returns[s + 1, asset] for s in range(t - WINDOW, t)])
  scale = x.std(0)
  z = (x - x.mean(0)) / scale
  errors = []
  for alpha in ALPHAS:
    total = 0.0
    for i in range(WINDOW):
      rest = np.arange(WINDOW) != i
      slope, intercept = ridge(z[rest], y[rest], alpha)
      total += (y[i] - intercept - z[i] @ slope)**2
    errors.append(total)
  return ridge(z, y, ALPHAS[int(np.argmin(errors))])[0] / scale


def test_slopes_are_those_of_a_slow_loop():
  prices, signals = random_market()
  forecast = forecasts.rolling_forecast(prices, signals, WINDOW, ALPHAS)
  returns = forecasts.past_returns(prices)
  assert forecast.first == 5 + WINDOW
  for t in (forecast.first, 50, 79):
    for asset in range(2):
      np.testing.assert_allclose(forecast.slopes[t, asset], slow_slopes(signals, returns, t, asset),
                                 rtol=1e-8)
    window = returns[t - WINDOW + 1:t + 1]
    np.testing.assert_allclose(forecast.mean[t], window.mean(0))
    np.testing.assert_allclose(forecast.covariance[t], np.cov(window.T))


def differs_before(rolling, change: int) -> bool:
  """Returns whether a forecast before day `change` depends on prices or signals from there on."""
  prices, signals = random_market()
  other_prices, other_signals = prices.copy(), signals.copy()
  other_prices[change:] *= 3.0
  other_signals[change:] += 1.0
  before = rolling(prices, signals).slopes[:change]
  return not np.array_equal(before, rolling(other_prices, other_signals).slopes[:change],
                            equal_nan=True)


def test_nothing_later_is_read():
  rolling = functools.partial(forecasts.rolling_forecast, window=WINDOW, alphas=ALPHAS)

  def peeking(prices, signals):  # a wrong one: the window ends a day late
    forecast = rolling(prices, signals)
    return dataclasses.replace(forecast, slopes=np.roll(forecast.slopes, -1, 0))

  assert not differs_before(rolling, 60)
  assert differs_before(peeking, 60)
