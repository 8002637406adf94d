"""Exact values of planted rows, and the share of an advantage that lands on the decisive token."""

import dataclasses
import itertools

import numpy as np
import pytest

from experiments.tables_lib import planted
from experiments.tables_lib.planted import GOOD, Planted
from jaxrl_llm.config import AdvantageConfig

SMALL = Planted(length=4, position=1, vocabulary=3, repair=0.2, seed=3)
EXACT = AdvantageConfig("gae", lam=0.0, whiten=False)


def enumerated(case: Planted, prefix: tuple) -> float:
  """Expected reward after a prefix, by enumeration of all continuations."""
  probs, total = planted.policy(case), 0.0
  for rest in itertools.product(range(case.vocabulary), repeat=case.length - len(prefix)):
    row = np.array(prefix + rest)
    right = row[case.position] == GOOD or case.vocabulary - 1 in row[case.position + 1:]
    chance = np.prod([probs[t, row[t]] for t in range(len(prefix), case.length)])
    total += chance * right
  return total


def test_values_are_those_of_an_enumeration():
  tokens = np.array(list(itertools.product(range(3), repeat=4)))
  values, rewards = planted.values_and_rewards(SMALL, tokens)
  for row, row_values, reward in zip(tokens, values, rewards, strict=True):
    expected = [enumerated(SMALL, tuple(row[:t])) for t in range(5)]
    np.testing.assert_allclose(row_values, expected, atol=1e-12)
    assert reward == expected[-1]


def test_samples_are_those_of_the_policy():
  tokens = planted.sample(SMALL, 4000, 5, 0).reshape(-1, 4)
  counts = np.stack([(tokens == v).mean(0) for v in range(3)], -1)
  np.testing.assert_allclose(counts, planted.policy(SMALL), atol=0.015)


def test_the_exact_advantage_lands_on_the_decisive_token():
  """And not one place on."""
  for position in (0, 6, 11):
    landing = planted.landing(Planted(position=position), EXACT, planted.Groups(4, 50, 0))
    assert landing.share == pytest.approx(1.0, abs=1e-5)
    assert landing.alignment == pytest.approx(1.0, abs=1e-5)
    assert np.argmax(landing.by_position) == position
    others = np.delete(landing.by_position, position)
    np.testing.assert_allclose(others, 0.0, atol=1e-5)


def test_one_advantage_for_all_tokens_has_the_share_of_a_uniform_one():
  landing = planted.landing(Planted(), AdvantageConfig("rloo"), planted.Groups(8, 50, 0))
  assert landing.share == pytest.approx(1 / 12, abs=1e-6)
  np.testing.assert_allclose(landing.by_position, 1 / 12, atol=1e-6)
  assert landing.alignment < 12**-0.5 + 0.01


def test_errors_of_the_values_take_credit_away():
  groups = planted.Groups(8, 50, 0)
  exact, wrong = (planted.landing(Planted(), EXACT, groups, error) for error in (0.0, 0.2))
  assert wrong.alignment < exact.alignment - 0.05


def test_repair_leaves_credit_to_later_tokens():
  case = dataclasses.replace(Planted(), repair=0.2)
  landing = planted.landing(case, EXACT, planted.Groups(8, 50, 0))
  assert landing.alignment == pytest.approx(1.0, abs=1e-5) and landing.share < 0.9
  assert min(landing.by_position[case.position + 1:]) > 0
