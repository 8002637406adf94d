"""Differences between methods, paired by seed: bootstrap intervals, Holm's correction, verdicts.

  differences = {"CTPO - GSPO": paired(ctpo, gspo), "MinPRO - GSPO": paired(minpro, gspo)}
  corrected = compare(differences)                      # one call for all comparisons of a page
  verdict(arena={"end": ..., "mean": ...}, transformer={"end": ..., "mean": ...})

Runs of one seed share their warm start and problems, so their difference varies less than the runs
do, and "the intervals overlap" is no test. Intervals are from the studentized bootstrap
("bootstrap-t"; Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 12.5): each
resample is measured by its own standard error, so that few seeds widen the interval. The percentile
interval does not do that: on 5 normal values it covers the mean 83 times in 100 instead of 95.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

ALPHA = 0.05  # chance that any comparison of a page is called different although none is
EXACT = 50_000  # up to so many resamples, all of them are looked at: up to 6 seeds
RESAMPLES = 20_000  # of more seeds, sampled by a fixed generator
Verdict = Literal["decided", "supported", "open"]
MEASURES = ("end", "mean")  # of a run: its end, and the mean over it


class Difference(NamedTuple):
  """A mean with its interval.

  Attributes:
    mean: of the paired differences, in their unit.
    low, high: the interval; infinite where the seeds are too few for `level`.
    p: two-sided; 0 is outside the interval exactly if p <= level.
    level: chance of error of the interval: ALPHA, or what Holm's correction leaves of it.
    count: of seeds.
  """

  mean: float
  low: float
  high: float
  p: float
  level: float
  count: int  # type: ignore[assignment]

  @property
  def sign(self) -> int:
    """1 or -1 if the interval leaves out 0, else 0."""
    return int(self.low > 0) - int(self.high < 0)

  @property
  def alone(self) -> int:
    """1 or -1 if the uncorrected interval leaves out 0, else 0; `sign` implies it."""
    return int(np.sign(self.mean)) if self.p <= ALPHA else 0

  def __str__(self) -> str:
    return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f}, n = {self.count})"


Measures = Mapping[str, Difference]  # by measure


class Judgement(NamedTuple):
  """A verdict, the side that it is for (1, -1; 0 if open) and the measures by which it holds."""

  verdict: Verdict
  side: int
  measures: tuple[str, ...]


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> np.ndarray:
  """Returns first - second, [S] of the seeds that both have, in the order of the seeds."""
  return np.array([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())],
                  float)


def bootstrap(values: Sequence[float] | np.ndarray, level: float = ALPHA) -> Difference:
  """Returns the mean of values [S] with its studentized bootstrap interval of 1 - `level`.

  One value, or equal values, give no estimate of the spread. Then p is from the sign test, 2^(1 -
  S), and the interval is the value itself or unbounded accordingly.

  Raises:
    ValueError: no values, or one that is not finite.
  """
  values = np.asarray(values, float)
  if not values.size or not np.isfinite(values).all():
    raise ValueError(f"values {values.tolist()}: one or more finite numbers, a value per seed.")
  mean, count = float(values.mean()), len(values)
  error = float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
  if error <= 1e-12 * abs(mean) or error == 0.0:
    p = 2.0 ** (1 - count) if mean else 1.0
    low, high = (mean, mean) if p <= level or (mean == 0 and count > 1) else (-np.inf, np.inf)
    return Difference(mean, low, high, p, level, count)
  studentized = _studentized(values)
  upper, lower = _tail(studentized, level / 2), -_tail(-studentized, level / 2)
  t = mean / error
  beyond = min(np.sum(studentized >= t), np.sum(studentized <= t))
  p = min(1.0, 2 * max(1, int(beyond)) / len(studentized))  # never 0: one resample at the least
  return Difference(mean, mean - upper * error, mean - lower * error, p, level, count)


def t_interval(values: Sequence[float] | np.ndarray, level: float = ALPHA) -> Difference:
  """Returns the mean of values [S] with Student's t interval of 1 - `level`, to be set beside the
  bootstrap's: the two fail on different samples.

  Raises:
    ValueError: fewer than two values.
  """
  values = np.asarray(values, float)
  if values.size < 2:
    raise ValueError(f"values {values.tolist()}: two or more, a value per seed.")
  mean, error = float(values.mean()), float(stats.sem(values))
  width = float(stats.t.ppf(1 - level / 2, len(values) - 1)) * error
  p = float(stats.ttest_1samp(values, 0.0).pvalue) if error else float(mean == 0)
  return Difference(mean, mean - width, mean + width, p, level, len(values))


def _studentized(values: np.ndarray) -> np.ndarray:
  """Returns (mean of a resample - mean) / standard error of the resample, [resamples]."""
  count = len(values)
  if count**count <= EXACT:
    indices = np.array(list(itertools.product(range(count), repeat=count)))
  else:
    indices = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
  resampled = values[indices]
  shift = resampled.mean(1) - values.mean()
  error = resampled.std(1, ddof=1) / np.sqrt(count)
  nothing = 1e-12 * np.abs(values).max()  # rounding leaves some spread between equal values
  shift, error = (np.where(np.abs(x) <= nothing, 0.0, x) for x in (shift, error))
  with np.errstate(divide="ignore", invalid="ignore"):
    return np.where(shift == 0, 0.0, shift / error)


def _tail(studentized: np.ndarray, share: float) -> float:
  """Returns the value that at most `share` of all values exceed; infinite if not one may."""
  allowed = int(np.floor(share * len(studentized) + 1e-9))  # values that may be beyond it
  return float(np.sort(studentized)[::-1][allowed]) if allowed else float(np.inf)


def holm(p: Mapping[str, float], alpha: float = ALPHA) -> dict[str, float]:
  """Returns the level at which each comparison is tested, by name (Holm 1979).

  The smallest p is tested at alpha / m, the next at alpha / (m - 1), and so on. From the first that
  fails, all share that one's level, so that none of them passes.
  """
  levels, failed = {}, None
  for rank, name in enumerate(sorted(p, key=p.__getitem__)):
    level = failed or alpha / (len(p) - rank)
    failed = failed or (level if p[name] > level else None)
    levels[name] = level
  return {name: levels[name] for name in p}


def compare(differences: Mapping[Any, Sequence[float] | np.ndarray],
            alpha: float = ALPHA) -> dict[Any, Difference]:
  """Returns each comparison of a page with its Holm-corrected interval, by name."""
  levels = holm({name: bootstrap(values).p for name, values in differences.items()}, alpha)
  return {name: bootstrap(values, levels[name]) for name, values in differences.items()}


def comparison_rows(means: Mapping[tuple, Mapping[int, float]],
                    reference: Callable[[tuple], tuple]) -> list[tuple]:
  """Returns a row for each comparison of a page: the group's key, then mean, corrected interval, p,
  "6 of 7" seeds whose difference has the sign of the mean, and "above", "below" or "not
  distinguishable".

  Args:
    means: a number by seed, by group; numbers of one seed share their start and are paired.
    reference: what a group is compared with; a group that is its own, or whose reference is not
      there, has no row, and neither has one with a single seed in common.
  """
  differences = {key: values for key, seeds in means.items()
                 if reference(key) != key and reference(key) in means
                 and len(values := paired(seeds, means[reference(key)])) > 1}
  words = {1: "above", 0: "not distinguishable", -1: "below"}
  same = {key: int(np.sum(np.sign(values) == np.sign(np.mean(values))))
          for key, values in differences.items()}
  return [(*key, f"{d.mean:+.3f}", f"{d.low:+.3f} to {d.high:+.3f}", f"{d.p:.4f}",
           f"{same[key]} of {d.count}", words[d.sign]) for key, d in compare(differences).items()]


def table_cells(differences: Mapping[Any, np.ndarray]) -> tuple[dict[Any, str], str]:
  """Returns the text of each difference of a table, and a sentence below the table.

  The interval is uncorrected, at ALPHA: one that is corrected for many comparisons is unbounded
  with five seeds. The word after it is of the corrected comparison.

  Args:
    differences: [S] by any key; all comparisons of the page.
  """
  corrected = compare(differences)
  words = {1: ", above", -1: ", below", 0: ""}
  intervals = {key: bootstrap(values) for key, values in differences.items()}
  cells = {key: f"{interval.mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"
                f"{words[corrected[key].sign]}"
           for key, interval in intervals.items()}
  decided = sum(bool(interval.sign) for interval in corrected.values())
  single = sum(bool(interval.sign) for interval in intervals.values())
  return cells, (f"\nOf {len(cells)} differences {single} leave out 0 at 95 % by themselves, and "
                 f"{decided} after Holm's correction over the table (\"above\", \"below\").\n")


def verdict(arena: Measures | None, transformer: Measures | None,
            model: Measures | None = None) -> Judgement:
  """Returns what the test beds say of one comparison, by the end of a run and its mean.

    decided    the intervals of arena and transformer leave out 0 on the same side by one measure,
               and no interval leaves it out on the other side
    supported  an interval of one of them does, and none leaves it out on the other side
    open       else

  Intervals that speak for a claim are corrected by `compare`; those that speak against it count at
  95 % each, so that a page with more comparisons does not hide a contradiction.

  Args:
    arena, transformer: by measure, from `compare`; None: not asked there.
    model: of the real model, which can contradict, and does not decide.
  """
  sides = {difference.alone for bed in (arena, transformer, model)
           for difference in (bed or {}).values()} - {0}
  seen = [{measure for measure, difference in (bed or {}).items() if difference.sign}
          for bed in (arena, transformer)]
  if len(sides) != 1 or not seen[0] | seen[1]:
    return Judgement("open", 0, ())
  measures = seen[0] & seen[1]
  return Judgement("decided" if measures else "supported", *sides,
                   tuple(sorted(measures or seen[0] | seen[1])))


def contradictions(arena: Measures | None, transformer: Measures | None) -> tuple[str, ...]:
  """Returns the measures by which arena and transformer leave out 0 on different sides, each by
  its own 95 % interval.
  """
  return tuple(sorted(
      measure for measure in (arena or {}).keys() & (transformer or {}).keys()
      if arena[measure].alone * transformer[measure].alone < 0))  # type: ignore[index]
