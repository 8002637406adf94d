"""A planted response has one error, which the later sums follow from."""

import numpy as np

from experiments.tables_lib import chains


def plants_one_error(corrupted) -> bool:
  """Whether each response is right but for one sum, which the later ones follow from."""
  asked = chains.prompts(200, 3, True)
  found, at = corrupted(asked, 0)
  steps = np.diff(found[:, :chains.TERMS], axis=1) % 10 != asked[:, 2:]
  first = (found[:, 0] != asked[:, 1])[:, None]
  wrong = np.concatenate([first, steps], 1)
  return bool((wrong == (np.arange(chains.TERMS) == at[:, None])).all()
              and (found[:, -1] == chains.END).all() and not chains.correct(asked, found).any()
              and set(at) == set(range(1, chains.TERMS)))


def changes_one_digit(asked, seed):
  found, at = chains.corrupted(asked, seed)
  right = chains.responses(asked)
  later = np.arange(chains.RESPONSE) > at[:, None]
  return np.where(later, right, found), at


def test_a_planted_response_has_one_error():
  assert plants_one_error(chains.corrupted)
  assert not plants_one_error(changes_one_digit)
  asked = chains.prompts(50, 3, False)
  assert chains.correct(asked, chains.responses(asked)).all()
