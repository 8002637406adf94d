"""The prober of critical tokens, with scripted continuations."""

import numpy as np

from experiments.papers.critical_tokens import probing
from experiments.papers.tvm.search import Step


def by_hand(find) -> bool:
  """Whether the position is that of the rule, on shares after each token."""
  cases = [([.9, .5, 0., 0., 0.], 2), ([0., .5, .02, 0., 0.], 3), ([.5, 0., .04, 0.], 1),
           ([.5, 0., .05, 0.], 3), ([.9, .8, 1.], None), ([.5, .02, .01], None), ([0.], 0)]
  return all(find(np.array(shares)) == place for shares, place in cases)


def test_the_critical_position_by_hand():
  assert by_hand(probing.critical_position)
  first_zero = lambda shares: int(np.argmin(shares)) if (shares == 0).any() else None

  def after_the_last_right_one(shares):
    start = max(np.flatnonzero(shares > 0), default=-1) + 1
    return int(start) if start < len(shares) else None

  assert not by_hand(first_zero) and not by_hand(after_the_last_right_one)


def test_shares_are_those_of_the_continuations_of_each_prefix():
  """A response is right if its ids add up to 6; the n-th continuation of a prefix adds n."""
  asked = []

  def continue_rows(rows, count, step):
    asked.extend(rows)
    return [Step([n], True) for _ in rows for n in range(count)]

  def right(row):
    return sum(row) == 6

  all_shares = probing.probe_critical_tokens(continue_rows, [[0, 0], [0]], [[3, 9, 1], [2, 4]],
                                             [right, right], count=4)
  assert asked == [[0, 0, 3], [0, 0, 3, 9], [0, 2]]
  np.testing.assert_array_equal(all_shares[0], [1 / 4, 0, 0])
  np.testing.assert_array_equal(all_shares[1], [0, 1])
  assert [probing.critical_position(shares) for shares in all_shares] == [1, None]
