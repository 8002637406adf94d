"""The table of logits: its columns, its log-probs, and what it learns where the answer is known."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.portfolio import outlet_policy, simulation, verdicts
from jaxrl_llm.config import ConfigError

ASSETS = 2
RIGHT = {outlet: "KZF"[i % 3] for i, outlet in enumerate(simulation.OUTLETS)}


def planted_days(count: int = 64) -> list[verdicts.Day]:
  """Days on which each letter that is right for its outlet pays 1 %."""
  rng = np.random.default_rng(0)
  days = []
  for i in range(count):
    outlets = "".join(rng.choice(list(simulation.OUTLETS), ASSETS))
    rewards = np.array([sum(letter == RIGHT[outlet] for letter, outlet in
                            zip(verdict, outlets, strict=True)) / 100
                        for verdict in verdicts.all_verdicts(ASSETS)])
    days.append(verdicts.Day(str(i), f"+1-1{outlets}", rewards, rewards))
  return days


def test_columns_are_those_of_the_table():
  names = verdicts.all_verdicts(3)
  letters = jnp.array([[verdicts.LETTERS.index(letter) for letter in name] for name in names])
  np.testing.assert_array_equal(outlet_policy.columns(letters), np.arange(27))
  reverse = (letters * 3**jnp.arange(3)).sum(-1)
  assert (reverse != np.arange(27)).any(), "the other order of places is another column"


def right_share(days: outlet_policy.Days, logits) -> float:
  letters = "".join(outlet_policy.greedy(logits, days))
  outlets = "".join(simulation.OUTLETS[i] for i in days.outlets.ravel())
  return float(np.mean([letter == RIGHT[outlet]
                        for letter, outlet in zip(letters, outlets, strict=True)]))


@pytest.mark.parametrize("text", ["grpo", "cispo"])
def test_planted_letters_are_learnt(text):
  days = outlet_policy.Days.of(planted_days())
  logits, gains = outlet_policy.train(days, text, 0, iterations=60)
  assert right_share(days, logits) > 0.95
  assert gains[0] < 1.0 < 1.5 < gains[-1] <= 2.0
  assert right_share(days, np.zeros_like(logits)) < 0.6, "an even table is noticed"
  shuffled = outlet_policy.Days(days.outlets, np.random.default_rng(1).permutation(days.rewards))
  assert right_share(days, outlet_policy.train(shuffled, text, 0, iterations=60)[0]) < 0.7
