"""Lengths of completions that are not known yet, for the figures of packing and of the engine."""

import math

import numpy as np

from jaxrl_llm.config import RolloutConfig


def shares(rows: int, mean: float) -> np.ndarray:
  """Returns [rows] lengths over their limit, ascending: quantiles of an exponential distribution
  that the limit cuts off, of this mean. With a mean of .4, one in ten reaches the limit.

  Own choice: rows of a policy end at a rate that changes little along the row.

  Args:
    mean: above 0, up to 1, where every row reaches its limit.
  """
  if mean >= 1.0:
    return np.ones(rows)
  low, high = 1e-6, 1e6  # the mean of the exponential distribution before the cut
  for _ in range(200):
    middle = math.sqrt(low * high)
    low, high = (middle, high) if -middle * math.expm1(-1.0 / middle) < mean else (low, middle)
  quantiles = (np.arange(rows) + 0.5) / rows
  return np.minimum(1.0, -low * np.log1p(-quantiles))


def in_flight(rows: int, mean: float) -> float:
  """Returns how long the completion of a slot is in the mean over the token steps, over its limit.

  A row of n tokens is in flight for n steps, with 1, 2, ... n of its tokens.
  """
  of_rows = shares(rows, mean)
  return float((of_rows**2).sum() / (2 * of_rows.sum()))


def decode_steps(cfg: RolloutConfig, slots: int, mean: float) -> int:
  """Returns the token steps of an engine whose slots take the next row when their row ends.

  With rows of all lengths in one queue, slots are full until the last ones: the tokens over the
  slots, and at least the longest row. Where every row reaches its limit: full rounds of chunks.
  """
  if mean >= 1.0:
    chunk = min(cfg.chunk, cfg.max_new_tokens)
    return -(-cfg.rows // slots) * -(-cfg.max_new_tokens // chunk) * chunk
  tokens = float(shares(cfg.rows, mean).sum()) * cfg.max_new_tokens
  return max(cfg.max_new_tokens, math.ceil(tokens / slots))
