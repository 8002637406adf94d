"""Technical indicators of closing prices: simple moving average and Wilder's RSI."""

import numpy as np

PERIOD = 14  # days


def sma(prices: np.ndarray, period: int = PERIOD) -> np.ndarray:
  """Returns the mean of the last `period` closes, [D, A]; NaN on the first `period - 1` days.

  Args:
    prices: [D, A].
  """
  out = np.full(prices.shape, np.nan)
  if len(prices) >= period:
    out[period - 1:] = np.lib.stride_tricks.sliding_window_view(prices, period, 0).mean(-1)
  return out


def rsi(prices: np.ndarray, period: int = PERIOD) -> np.ndarray:
  """Returns the relative strength index in [0, 100], [D, A]; NaN on the first `period` days.

    rsi_t = 100 gain_t / (gain_t + loss_t),   gain_t = ((n - 1) gain_(t-1) + max(change_t, 0)) / n

  and the loss alike, both starting from the mean of the first n changes. Without any change it is
  50.

  Args:
    prices: [D, A].

  Source: J. W. Wilder, New Concepts in Technical Trading Systems (1978).
  """
  out = np.full(prices.shape, np.nan)
  if len(prices) <= period:
    return out
  changes = np.diff(prices, axis=0)
  rises, falls = np.maximum(changes, 0), np.maximum(-changes, 0)
  gain, loss = rises[:period].mean(0), falls[:period].mean(0)
  for t in range(period, len(prices)):
    if t > period:
      gain = ((period - 1) * gain + rises[t - 1]) / period
      loss = ((period - 1) * loss + falls[t - 1]) / period
    total = gain + loss
    out[t] = np.where(total > 0, 100 * gain / np.where(total > 0, total, 1), 50.0)
  return out


def technical_signals(prices: np.ndarray) -> np.ndarray:
  """Returns RSI and whether the close is above its SMA, [D, A, 2]; NaN where either is unknown."""
  average, strength = sma(prices), rsi(prices)
  above = np.where(np.isnan(average), np.nan, prices > average)
  return np.stack([strength, above], -1)
