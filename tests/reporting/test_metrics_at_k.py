"""pass@k against its definition."""

import itertools
import math

import numpy as np
import pytest

from jaxrl_llm.reporting.metrics_at_k import pass_at_k

GOLDEN = {
    (4, 1, 2): 0.5,
    (16, 3, 8): 0.9,
    (32, 1, 8): 0.25,
    (32, 1, 32): 1.0,
    (64, 5, 16): 0.775421,
    (8, 0, 4): 0.0,
    (8, 5, 4): 1.0,
}


def plug_in(n, c, k):
  return 1 - (1 - c / n) ** k


@pytest.mark.parametrize("arguments, value", GOLDEN.items())
def test_golden_values(arguments, value):
  assert pass_at_k(*arguments) == pytest.approx(value, abs=5e-7)


def test_equals_the_share_of_subsets_that_hold_a_correct_sample():
  for n, k in itertools.product(range(1, 8), repeat=2):
    for c in range(n + 1):
      if k <= n:
        subsets = list(itertools.combinations(range(n), k))
        assert pass_at_k(n, c, k) == pytest.approx(np.mean([min(s) < c for s in subsets]),
                                                   abs=1e-12)


def expectation(estimate, n, p, k):
  return sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * estimate(n, c, k) for c in range(n + 1))


def test_unbiased_and_the_plug_in_is_not():
  for n, p, k in ((6, 0.3, 3), (8, 0.1, 8), (5, 0.9, 2)):
    truth = 1 - (1 - p) ** k
    assert expectation(pass_at_k, n, p, k) == pytest.approx(truth, abs=1e-12)
    assert abs(expectation(plug_in, n, p, k) - truth) > 1e-3
  assert plug_in(4, 1, 2) == 0.4375


@pytest.mark.parametrize("arguments", [(4, 1, 5), (4, 5, 1), (4, -1, 1), (4, 1, 0)])
def test_refuses_what_has_no_meaning(arguments):
  with pytest.raises(ValueError, match="1 <= k <= num_samples"):
    pass_at_k(*arguments)
