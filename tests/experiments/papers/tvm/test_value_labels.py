"""Labels of value models: worked out by hand, and without bias on walks whose value is known."""

import unittest.mock

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.tvm import walks
from experiments.papers.tvm.value_labels import prefix_value_labels
from jaxrl_llm.ops import masked

# (response, outcome); the first six are one group, whose rows stand apart, the last is another.
GOLDEN = [([1, 2, 3], 1.0), ([1, 2, 4], 0.0), ([1, 2, 3], 0.0), ([1, 5], 1.0), ([1, 2], 1.0),
          ([1, 5, 6, 7], 0.0), ([1, 2, 3], 1.0)]
GROUP = [4, 4, 4, 4, 4, 4, -1]
# All six begin with 1: 3 of 6 are right. 1 2: rows 0, 1, 2, 4, of which 2 are right. 1 2 3: rows 0
# and 2 with one right, also at the last token. 1 5: rows 3 and 5, one right. Unique: their own.
EXPECTED = [[1 / 2, 1 / 2, 1 / 2, 0], [1 / 2, 1 / 2, 0, 0], [1 / 2, 1 / 2, 1 / 2, 0],
            [1 / 2, 1 / 2, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 2, 1 / 2, 0, 0], [1, 1, 1, 0]]


def golden(labels, outcomes=None):
  tokens = np.full((len(GOLDEN), 4), 9, np.int32)
  for row, (ids, _) in enumerate(GOLDEN):
    tokens[row, :len(ids)] = ids
  outcomes = [right for _, right in GOLDEN] if outcomes is None else outcomes
  return labels(jnp.asarray(tokens), jnp.asarray([len(ids) for ids, _ in GOLDEN]),
                jnp.asarray(outcomes, jnp.float32), jnp.asarray(GROUP))


def test_labels_worked_out_by_hand():
  np.testing.assert_allclose(golden(prefix_value_labels), EXPECTED, atol=1e-7)
  for wrong in (outcomes, forgets_the_parent, before_the_token, of_the_others):
    assert not np.allclose(golden(wrong), EXPECTED, atol=1e-7), wrong
  # Row 5 is right instead of row 3: 1/2 for 1 5, and 1 where row 5 is alone.
  other = golden(prefix_value_labels, [1, 0, 0, 0, 0, 1, 0])
  np.testing.assert_allclose(other[:3], [[1 / 3, 1 / 4, 1 / 2, 0], [1 / 3, 1 / 4, 0, 0],
                                         [1 / 3, 1 / 4, 1 / 2, 0]], atol=1e-7)
  np.testing.assert_allclose(other[3:], [[1 / 3, 1 / 2, 0, 0], [1 / 3, 1 / 4, 0, 0],
                                         [1 / 3, 1 / 2, 1, 1], [0, 0, 0, 0]], atol=1e-7)


def outcomes(tokens, lengths, rewards, group_ids):
  """ORM: every token has the row's own outcome."""
  inside = jnp.arange(tokens.shape[1]) < lengths[:, None]
  return jnp.where(inside, rewards[:, None], 0.0)


def forgets_the_parent(*arguments):
  """Takes prefixes for equal that end in the same token, whatever came before, in any group."""
  with unittest.mock.patch.object(masked, "pair_index", lambda number, token: token):
    return prefix_value_labels(*arguments)


def before_the_token(*arguments):
  """The value of the state before each token."""
  return jnp.roll(prefix_value_labels(*arguments), 1, 1)


def of_the_others(tokens, lengths, rewards, group_ids):
  """Everybody's mean without the row's own outcome, at the first token."""
  labels = prefix_value_labels(tokens, lengths, rewards, group_ids)
  count = jnp.sum(group_ids[:, None] == group_ids, 1)
  return labels.at[:, 0].set((labels[:, 0] * count - rewards) / jnp.maximum(count - 1, 1))


def drawn(case, prompt, draws, size, seed):
  """Rows [draws * size, PROMPT + response] of one prompt, sampled with numpy."""
  rng = np.random.default_rng(seed)
  rows, probs = draws * size, walks.step_probabilities(case)
  digits = (rng.random((rows, case.steps, 1)) > np.cumsum(probs, 1)).sum(-1)
  total = (prompt[2:].sum() + digits.sum(1)) % 10
  total = np.where(rng.random(rows) < case.slip, (total + rng.integers(1, 10, rows)) % 10, total)
  end = [np.full(rows, walks.EQUALS), total, np.full(rows, walks.END)]
  return np.column_stack([np.tile(prompt, (rows, 1)), digits, *end]).astype(np.int32)


def largest_deviation(labels) -> float:
  """Of the mean label over 200 groups from V, in standard errors, over prefixes of 1 or 2 tokens.

  The standard error is exact: that of a mean of n rows is sqrt(V (1 - V) / n).
  """
  case, draws, size = walks.Walk(steps=3, bias=0.3, slip=0.2), 200, 64
  prompt = walks.prompts(False)[40]
  tokens = drawn(case, prompt, draws, size, 0)
  estimates = np.asarray(labels(jnp.asarray(tokens), jnp.full(len(tokens), tokens.shape[1]),
                                jnp.asarray(walks.rewards(case, tokens), jnp.float32),
                                jnp.repeat(jnp.arange(draws), size)), np.float64)
  exact, group = walks.exact_values(case, tokens), np.repeat(np.arange(draws), size)
  worst, seen = 0.0, 0
  for length in (1, 2):
    column = walks.PROMPT + length - 1
    for prefix in np.unique(tokens[:, walks.PROMPT:column + 1], axis=0):
      rows = np.flatnonzero((tokens[:, walks.PROMPT:column + 1] == prefix).all(1))
      groups, first, count = np.unique(group[rows], return_index=True, return_counts=True)
      value = exact[rows[0], column]
      error = np.sqrt((value * (1 - value) / count).sum()) / len(groups)
      worst = max(worst, abs(estimates[rows[first], column].mean() - value) / error)
      seen += 1
  assert seen == 110, "every digit, and every pair of digits"
  return worst


@pytest.mark.nightly
def test_labels_are_unbiased():
  assert largest_deviation(prefix_value_labels) < 4
  for wrong in (forgets_the_parent, before_the_token):
    assert largest_deviation(wrong) > 4
