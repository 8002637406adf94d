"""Labels of value models, worked out by hand."""

import unittest.mock

import jax.numpy as jnp
import numpy as np
import pytest

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


WRONG = [outcomes, forgets_the_parent, before_the_token, of_the_others]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_hand_rejects(wrong):
  with pytest.raises(AssertionError):
    np.testing.assert_allclose(golden(wrong), EXPECTED, atol=1e-7)
