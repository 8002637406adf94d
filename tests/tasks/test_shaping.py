"""Reward shaping, by hand."""

import numpy as np
import pytest

from jaxrl_llm.tasks import shaping

# Group 4: 3 of 4 correct, lengths 2, 4, 6 (mean 4, population std sqrt(8 / 3)); 9: 1 of 2; 1: 2 of
# 2, equal lengths; 6: none of 2.
GROUP = np.array([4, 9, 4, 1, 6, 4, 1, 9, 6, 4])
CORRECT = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 0], bool)
LENGTH = np.array([2, 7, 4, 5, 3, 6, 5, 8, 1, 30])
Z = 2 / np.sqrt(8 / 3)
SHORT, LONG = (1 - 0.6 / (1 + np.exp(-z)) for z in (-Z, Z))


@pytest.mark.parametrize(("fraction", "expected"), [
    (0.0, [1, 0, 1, 1, 0, 1, 1, 1, 0, 0]),
    (0.2, [1, 0, 1, 0.7, 0, 1, 0.7, 1, 0, 0]),  # one group of four: all correct, z = 0
    (0.5, [SHORT, 0, 0.7, 0.7, 0, LONG, 0.7, 1, 0, 0]),
    # a single correct row has z = 0; wrong rows stay at 0
    (1.0, [SHORT, 0, 0.7, 0.7, 0, LONG, 0.7, 0.7, 0, 0])])
def test_grpo_lambda_by_hand(fraction, expected):
  got = shaping.grpo_lambda(CORRECT, LENGTH, GROUP, alpha=0.6, fraction=fraction)
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, expected, rtol=1e-6)
  order = np.random.default_rng(0).permutation(len(GROUP))
  np.testing.assert_array_equal(
      shaping.grpo_lambda(CORRECT[order], LENGTH[order], GROUP[order], alpha=0.6,
                          fraction=fraction), got[order])


def test_grpo_lambda_is_a_rank_not_a_threshold():
  """Groups that all miss any threshold still give the top share; ties go to the smaller id."""
  group, correct = np.repeat([8, 2, 5], 2), np.tile([True, False], 3)
  got = shaping.grpo_lambda(correct, np.arange(6), group, alpha=0.5, fraction=1 / 3)
  np.testing.assert_allclose(got, [1, 0, 0.75, 0, 1, 0])


def test_grpo_lambda_leaves_out_rows():
  # group 1 goes; 4 is now all correct and first
  keep = np.array([1, 1, 1, 0, 1, 1, 0, 1, 1, 0], bool)
  got = shaping.grpo_lambda(CORRECT, LENGTH, GROUP, alpha=0.6, fraction=1 / 3, keep=keep)
  np.testing.assert_allclose(got, [SHORT, 0, 0.7, 0, 0, LONG, 0, 1, 0, 0], rtol=1e-6)


def test_overlong_penalty_by_hand():
  got = shaping.overlong_penalty(np.array([0, 80, 85, 90, 100, 130]), 100, 20)
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, [0, 0, -0.25, -0.5, -1, -1])
  np.testing.assert_allclose(shaping.overlong_penalty(np.array([90, 130]), 100, 20, 3.0),
                             [-1.5, -3])
