"""The figures of a sampler's gap: buckets by the sampler's probability, and what min_p removes."""

import numpy as np
import pytest

from experiments.smollm2 import mismatch

LIKELY, RARE = np.log(0.8), np.log(5e-4)


def planted():
  """Three likely tokens, off by .01, and a rare one, off by .3, that min_p from .001 on removes."""
  sampler = np.array([LIKELY] * 3 + [RARE])
  d = np.array([0.01, -0.01, 0.01, 0.3])
  return {"sampler": sampler, "trainer": sampler + d, "largest": np.full(4, LIKELY),
          "pruned": np.tile([0.0, 0.0, 0.002, 0.01, 0.05], (4, 1))}


def test_the_gap_lies_where_it_was_planted():
  of = mismatch.summary(planted())
  by_low = {bucket["low"]: bucket for bucket in of["buckets"]}
  assert by_low[0.5]["tokens"] == 3 and by_low[1e-4]["tokens"] == 1
  assert by_low[0.5]["absolute"] == pytest.approx(0.01)
  assert by_low[0.5]["mean"] == pytest.approx(0.01 / 3)
  assert by_low[0.5]["over_bound"] == pytest.approx(0.01 / 0.2)
  assert by_low[1e-4]["absolute"] == pytest.approx(0.3)
  assert by_low[0.0]["absolute"] is None and by_low[1e-4]["half_width"] is None
  assert of["outside"] == 0.25 and of["tokens"] == 4
  rules = of["min_p"]  # they remove the rare token from its threshold on
  assert [rules[name]["tokens"] for name in mismatch.MIN_P] == [0, 0, 0.25, 0.25, 0.25]
  assert rules["0.01"]["of_mismatch"] == pytest.approx(0.3 / 0.33)
  assert rules["0.05"]["mass"] == pytest.approx(0.05)


def test_buckets_by_the_trainers_probability_are_told_apart():
  """Wrong: a token is placed by the probability that the trainer gives it."""
  tokens = planted()
  tokens["trainer"][3] = np.log(0.05)
  right, wrong = (mismatch.summary(tokens | {"sampler": tokens[name], "trainer": tokens[other]})
                  for name, other in (("sampler", "trainer"), ("trainer", "sampler")))
  assert right["buckets"][1]["tokens"] == 1 and wrong["buckets"][1]["tokens"] == 0
