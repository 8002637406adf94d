"""Prefixes that the completions of a group share, and the weights of right ones."""

import numpy as np
import pytest

from experiments.smollm2 import groups

ROWS = [(1, 2, 3), (1, 2, 4), (1, 5, 3), (6, 2, 3)]


def test_a_prefix_is_shared_if_another_row_begins_with_it():
  """Wrong: counts the token itself, which the rows need not have in common."""
  assert groups.shared(ROWS) == {1: (4, 4), 2: (3, 4), 3: (2, 4)}
  longer = groups.shared([(1, 2), (1,), (1, 2, 3)])
  assert longer == {1: (3, 3), 2: (2, 2), 3: (0, 1)}, "rows that have ended do not count"


def test_smaller_groups_share_less():
  full, half = (groups.shares(ROWS, 4, size) for size in (4, 2))
  assert full["all"] == 9 / 12 and half["all"] == 8 / 12
  assert half["positions"] == {"1": 1.0}  # positions beyond the rows are left out


def test_weights_of_right_rows():
  """By tokens a long wrong row weighs more; a group without a difference has no weight."""
  mask = np.arange(8) < np.array([2, 2, 6, 6, 5, 5, 5, 5])[:, None]
  of = groups.weights(mask, np.array([1.0, 1, 0, 0, 1, 1, 1, 1], np.float32), 4)
  assert (of["groups"], of["right"], of["wrong"], of["rows"]) == (1, 2.0, 6.0, 0.5)
  assert of["token"] == pytest.approx(4 / 16) == of["tokens"]
  assert of["sequence"] == pytest.approx(0.5) and of["balanced"] == pytest.approx(0.5)
