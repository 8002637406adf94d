"""Majority votes, and intervals against simulated truth."""

import functools
import math

import numpy as np
import pytest

from experiments.tables_lib.benchmark.intervals import bootstrap_interval, maj_at_k, wilson_interval


@pytest.mark.parametrize("keys, correct, value", [
    ("aab", [1, 1, 0], 1.0), ("abb", [1, 0, 0], 0.0),
    ("ab", [1, 0], 1.0), ("ba", [0, 1], 0.0),  # a tie: the first
    ("abab", [0, 1, 0, 1], 0.0),
    ([None, None, "a"], [0, 0, 1], 1.0),  # no answer, no vote
    ([None, None], [0, 0], 0.0), ([], [], 0.0),
    ("abcderr", [0] * 5 + [1] * 2, 1.0),  # most samples are wrong, and all of these differ
])
def test_maj_at_k(keys, correct, value):
  assert maj_at_k(list(keys), correct) == value


quick_interval = functools.partial(bootstrap_interval, resamples=120)


def simulated(rng, problems, samples):
  """Samples of problems whose difficulties differ much, [P, n]."""
  return (rng.random((problems, samples)) < rng.beta(0.5, 0.5, (problems, 1))).astype(float)


def coverage(interval) -> float:
  rng = np.random.default_rng(5)
  intervals = [interval(simulated(rng, 40, 8)) for _ in range(200)]
  return np.mean([low <= 0.5 <= high for low, high in intervals])


def test_intervals_cover_as_often_as_they_say():
  assert 0.88 <= coverage(quick_interval) <= 0.99
  assert 0.88 <= coverage(lambda x: quick_interval(x.mean(1))) <= 0.99
  as_if_independent = lambda x: quick_interval(x.reshape(-1))
  assert coverage(as_if_independent) < 0.8


def test_interval_of_lower_level_lies_within():
  data = simulated(np.random.default_rng(0), 30, 4)
  wide, narrow = bootstrap_interval(data), bootstrap_interval(data, level=0.5)
  assert wide[0] < narrow[0] < data.mean() < narrow[1] < wide[1]
  assert bootstrap_interval(data) == wide != bootstrap_interval(data, seed=1)


def test_missing_samples_are_left_out():
  data = np.array([[1.0, np.nan, 1.0], [1.0, 1.0, np.nan], [np.nan] * 3])
  assert bootstrap_interval(data) == wilson_interval(2, 2)
  assert bootstrap_interval(np.array([0.5, np.nan])) == (0.5, 0.5)
  assert all(map(math.isnan, bootstrap_interval(np.array([np.nan]))))


def test_no_problem_right_has_an_interval_all_the_same():
  """0 of 32: by hand z^2 / (32 + z^2) with z = 1.96."""
  low, high = bootstrap_interval(np.zeros(32))
  assert low == 0.0 and high == pytest.approx(3.8416 / 35.8416, abs=1e-4)
  assert bootstrap_interval(np.ones((32, 4)))[0] == pytest.approx(1 - high)
  for count in range(1, 40):  # the share itself lies within, whatever the rounding
    assert wilson_interval(0, count)[0] == 0.0 and wilson_interval(count, count)[1] == 1.0
  low, high = wilson_interval(8, 10)
  assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))


def test_interval_refuses():
  with pytest.raises(ValueError, match="level = 1"):
    bootstrap_interval(np.ones(2), level=1)
  with pytest.raises(ValueError, match=r"\[P, n\]"):
    bootstrap_interval(np.ones((2, 2, 2)))
