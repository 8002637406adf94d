"""RSI and SMA: TA-Lib's numbers, a slow loop's, and the edges."""

import itertools

import numpy as np
import pytest

from experiments.papers.portfolio import indicators


def random_prices(days: int = 300, assets: int = 3, seed: int = 0) -> np.ndarray:
  rng = np.random.default_rng(seed)
  return 100 * np.exp(np.cumsum(0.04 * rng.normal(size=(days, assets)), 0))


def slow_rsi(prices, period: int = 14):
  """Wilder's RSI of one asset, day by day."""
  out = [np.nan] * len(prices)
  changes = [later - earlier for earlier, later in itertools.pairwise(prices)]
  gain = sum(max(change, 0) for change in changes[:period]) / period
  loss = sum(max(-change, 0) for change in changes[:period]) / period
  out[period] = 100 - 100 / (1 + gain / loss)
  for t in range(period + 1, len(prices)):
    gain = (gain * (period - 1) + max(changes[t - 1], 0)) / period
    loss = (loss * (period - 1) + max(-changes[t - 1], 0)) / period
    out[t] = 100 - 100 / (1 + gain / loss)
  return np.array(out)


def plain_mean_rsi(prices, period: int = 14):
  """A wrong one: means of the last changes, without Wilder's memory."""
  out = np.full(len(prices), np.nan)
  changes = np.diff(prices)
  for t in range(period, len(prices)):
    window = changes[t - period:t]
    out[t] = 100 * np.maximum(window, 0).sum() / np.abs(window).sum()
  return out


def test_rsi_and_sma_are_those_of_talib():
  talib = pytest.importorskip("talib", reason="TA-Lib is not installed: pip install TA-Lib")
  prices = random_prices()
  for name, indicator in (("RSI", indicators.rsi), ("SMA", indicators.sma)):
    expected = [getattr(talib, name)(np.ascontiguousarray(column), 14) for column in prices.T]
    np.testing.assert_allclose(indicator(prices), np.stack(expected, 1), atol=1e-9)


def test_rsi_is_that_of_a_slow_loop():
  prices = random_prices()
  expected = np.stack([slow_rsi(column) for column in prices.T], 1)
  np.testing.assert_allclose(indicators.rsi(prices), expected, atol=1e-9)
  assert np.nanmax(np.abs(plain_mean_rsi(prices[:, 0]) - expected[:, 0])) > 1


def test_edges():
  rising = np.arange(1.0, 40.0)[:, None]
  assert np.isnan(indicators.rsi(rising)[:14]).all() and (indicators.rsi(rising)[14:] == 100).all()
  assert (indicators.rsi(rising[::-1])[14:] == 0).all()
  flat = indicators.technical_signals(np.ones((20, 1)))
  assert (flat[14:, 0, 0] == 50).all() and (flat[14:, 0, 1] == 0).all()
  assert np.isnan(flat[:13]).all()
  assert np.isnan(indicators.technical_signals(np.ones((5, 2)))).all()
