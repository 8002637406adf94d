"""Sums of log-ratios by position: deviation, slope, and what estimators drop there."""

import numpy as np
import pytest

from experiments.smollm2 import prefix_ratios

ROWS, LENGTH, PROMPT = 400, 60, 8


def planted(correlated: bool):
  """Log-ratios of deviation .1 from column PROMPT on: independent, or one value for a row."""
  rng = np.random.default_rng(0)
  shape = (ROWS, 1 if correlated else LENGTH - PROMPT)
  x = np.zeros((ROWS, LENGTH))
  x[:, PROMPT:] = 0.1 * rng.standard_normal(shape)
  mask = np.zeros(x.shape, bool)
  mask[:, PROMPT:] = True
  return x, mask


@pytest.mark.parametrize("correlated, slope", [(False, 0.5), (True, 1.0)])
def test_the_slope_tells_independent_ratios_from_a_drift(correlated, slope):
  of = prefix_ratios.spread(*planted(correlated))
  assert of["slope"] == pytest.approx(slope, abs=0.06)
  low, high = of["slope_interval"]
  assert low <= of["slope"] <= high and low <= slope + 1e-9 and high >= slope - 1e-9
  assert (high - low < 1e-6) == correlated, "one value for a row has the slope 1 in every sample"
  assert of["positions"][16]["deviation"] == pytest.approx(0.1 * 16**slope, rel=0.15)
  assert of["absolute"] == pytest.approx(0.1 * np.sqrt(2 / np.pi), rel=0.1)


def test_positions_count_sampled_tokens():
  """Wrong: positions are columns, so that t = 1 would be a token of the prompt."""
  x, mask = planted(False)
  first, live = prefix_ratios.aligned(x, mask)
  assert live[:, :LENGTH - PROMPT].all() and not live[:, LENGTH - PROMPT:].any()
  np.testing.assert_array_equal(first[:, 0], x[:, PROMPT])
  assert prefix_ratios.spread(x, np.ones_like(mask))["positions"][4]["deviation"] == 0


def test_windows_drop_what_they_should():
  x, mask = planted(False)
  by_preset = {preset: prefix_ratios.dropped(preset, 2 * x, mask) for preset in ("grpo", "minpro")}
  outside = np.mean(np.abs(np.expm1(2 * x[:, PROMPT])) > 0.2) / 2  # one sign of the advantage
  assert by_preset["grpo"][1] == pytest.approx(outside, abs=0.02)
  assert set(by_preset["minpro"].values()) == {0.0}  # it bounds a weight and drops nothing
