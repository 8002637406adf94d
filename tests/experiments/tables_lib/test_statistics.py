"""Paired intervals, Holm's correction, and verdicts that change with the results."""

import numpy as np
import pytest

from experiments.tables_lib import statistics
from experiments.tables_lib.statistics import bootstrap, compare, holm, paired, verdict

CLEAR = (0.30, 0.34, 0.28, 0.33, 0.31)
NOISY = (0.30, -0.20, 0.10, 0.25, -0.15)


def percentile(values: np.ndarray) -> tuple[float, float]:
  """The interval that few seeds make too narrow."""
  chosen = np.random.default_rng(0).integers(0, len(values), (400, len(values)))
  low, high = np.quantile(values[chosen].mean(1), [0.025, 0.975])
  return float(low), float(high)


def coverage(interval) -> float:
  """Returns how often an interval of 95 % holds the mean of 5 normal values."""
  rng = np.random.default_rng(3)
  bounds = [interval(rng.normal(size=5)) for _ in range(300)]
  return float(np.mean([low <= 0 <= high for low, high in bounds]))


def test_five_seeds_are_covered_as_stated():
  assert 0.92 <= coverage(lambda values: bootstrap(values)[1:3]) <= 0.99
  assert coverage(percentile) < 0.90  # what the test rejects


def test_seeds_are_paired_and_others_left_out():
  first, second = {0: 1.0, 1: 0.5, 7: 0.0}, {1: 0.25, 0: 0.5, 3: 9.0}
  np.testing.assert_allclose(paired(first, second), [0.5, 0.25])


@pytest.mark.parametrize("values", [CLEAR, NOISY, (1.0, 0.0, 0.0, 0.0, 0.0), (0.1, 0.2, 0.9)])
@pytest.mark.parametrize("level", [0.3, 0.05, 0.004])
def test_zero_is_outside_exactly_if_p_is_at_most_the_level(values, level):
  difference = bootstrap(values, level)
  assert bool(difference.sign) == (difference.p <= level)
  mirrored = bootstrap([-value for value in values], level)
  np.testing.assert_allclose((mirrored.low, mirrored.high), (-difference.high, -difference.low))
  assert mirrored.p == difference.p


def test_values_without_spread():
  """Four of five runs at the ceiling show no spread, which is no certainty."""
  assert bootstrap([1.0] * 5).sign == 0 and bootstrap([1.0] * 5).p == 1 / 16
  assert bootstrap([1.0] * 6).sign == 1  # by the signs alone: 1 in 32
  assert bootstrap([0.0] * 5)[1:4] == (0.0, 0.0, 1.0)
  assert bootstrap([0.3]).low == -np.inf
  assert bootstrap([1.0, 1.0, 1.0, 1.0, 0.9]).low == -np.inf
  with pytest.raises(ValueError, match="finite"):
    bootstrap([0.1, np.nan])


def test_the_t_interval_by_hand():
  """Of 1, 2, 3: mean 2, standard error 1 / sqrt(3), t of 2 degrees of freedom 4.303 at 95 %."""
  by_t = statistics.t_interval((1.0, 2.0, 3.0))
  assert by_t.low == pytest.approx(2 - 4.3027 / 3**0.5, abs=1e-3) and by_t.sign == 0
  assert by_t.p == pytest.approx(0.0742, abs=1e-3)
  assert statistics.t_interval((1.0, 2.0, 3.0), 0.1).sign == 1
  with pytest.raises(ValueError, match="two or more"):
    statistics.t_interval((1.0,))


def test_holm_by_hand():
  """Levels .05 / 3, .05 / 2 (fails), and that of the failure again, though .03 < .05."""
  levels = holm({"a": 0.028, "b": 0.001, "c": 0.03})
  assert levels == pytest.approx({"a": 0.025, "b": 0.05 / 3, "c": 0.025})


def test_more_comparisons_widen_the_interval():
  alone = compare({"x": CLEAR})["x"]
  beside = compare({"x": CLEAR, **{f"noise {i}": NOISY for i in range(11)}})["x"]
  assert alone.low > beside.low > 0 and beside.level == pytest.approx(0.05 / 12)


def difference(low: float, high: float, p: float | None = None) -> statistics.Difference:
  p = p or (0.01 if low > 0 or high < 0 else 0.5)
  return statistics.Difference((low + high) / 2, low, high, p, 0.05, 5)


UP, DOWN, UNSURE = difference(0.1, 0.2), difference(-0.2, -0.1), difference(-0.1, 0.2)
WEAKLY_DOWN = difference(-0.2, 0.01, p=0.03)  # corrected, it holds 0; by itself it does not


def by_the_mean_alone(arena, transformer, model=None) -> statistics.Judgement:
  """The earlier rule: one measure decides, and what speaks against it is not asked."""
  if not (arena and transformer) or not arena["mean"].sign:
    return statistics.Judgement("open", 0, ())
  same = arena["mean"].sign == transformer["mean"].sign
  return statistics.Judgement("decided" if same else "open", arena["mean"].sign, ("mean",))


@pytest.mark.parametrize("arena, transformer, expected", [
    ((UP, UP), (UP, UP), ("decided", 1, ("end", "mean"))),
    ((DOWN, UNSURE), (DOWN, DOWN), ("decided", -1, ("end",))),
    ((UP, UNSURE), (UNSURE, UP), ("supported", 1, ("end", "mean"))),
    ((UP, UP), None, ("supported", 1, ("end", "mean"))),
    (None, (UNSURE, DOWN), ("supported", -1, ("mean",))),
    ((DOWN, UP), (UP, UP), ("open", 0, ())),
    ((UP, UP), (UP, WEAKLY_DOWN), ("open", 0, ())),
    ((UP, UNSURE), (UNSURE, DOWN), ("open", 0, ())),
    ((UNSURE, UNSURE), (WEAKLY_DOWN, UNSURE), ("open", 0, ())),
    (None, None, ("open", 0, ())),
])
def test_the_rule_of_verdicts(arena, transformer, expected):
  arena, transformer = (pair and dict(zip(statistics.MEASURES, pair, strict=True))
                        for pair in (arena, transformer))
  assert verdict(arena, transformer) == expected


def test_one_measure_alone_misses_what_the_other_contradicts():
  arena, transformer = {"end": DOWN, "mean": UP}, {"end": UP, "mean": UP}
  assert by_the_mean_alone(arena, transformer).verdict == "decided"
  assert verdict(arena, transformer).verdict == "open"
  assert verdict({"mean": UP}, {"mean": UP}, {"mean": DOWN}).verdict == "open"
  assert verdict({"mean": UNSURE}, None, {"mean": UP}).verdict == "open"


def test_rows_of_a_page_are_paired_and_corrected_together():
  seeds, clear = range(7), (*CLEAR, 0.29, 0.35)
  means = {("grpo",): {seed: 0.1 * seed for seed in seeds},
           ("cispo",): {seed: 0.1 * seed + clear[seed] for seed in seeds},
           ("gspo",): {seed: 0.1 * seed + (-0.2, 0.2)[seed % 2] for seed in seeds},
           ("one",): {0: 0.9}}
  rows = statistics.comparison_rows(means, lambda key: ("grpo",))
  assert [(row[0], *row[-2:]) for row in rows] == [
      ("cispo", "7 of 7", "above"), ("gspo", "4 of 7", "not distinguishable")]
  alone = statistics.comparison_rows({key: means[key] for key in (("grpo",), ("cispo",))},
                                     lambda key: ("grpo",))
  assert alone[0][2] != rows[0][2], "one comparison needs no correction"
  unpaired = {("grpo",): means["grpo",], ("cispo",): {9 - seed: value for seed, value
                                                      in means["cispo",].items()}}
  assert statistics.comparison_rows(unpaired, lambda key: ("grpo",))[0][-1] == "not distinguishable"
