"""maj@k and confidence intervals over problems, in plain numpy.

The tie rule and the bootstrap are ours.
"""

import math
import statistics
from collections.abc import Hashable, Sequence

import numpy as np


def maj_at_k(keys: Sequence[Hashable | None], correct: Sequence[bool]) -> float:
  """Returns 1.0 if the most frequent answer is correct, else 0.0.

  Samples without an answer do not vote; without any vote the result is 0.0. A tie goes to the
  answer that appeared first. For independent samples that is a fair choice, and it is reproducible.
  Equivalent answers may be judged differently: then the first of them decides.

  Args:
    keys: [n], equal for equivalent answers; None: no answer.
    correct: [n].
  """
  votes: dict[Hashable, list[int]] = {}
  for index, key in enumerate(keys):
    if key is not None:
      votes.setdefault(key, []).append(index)
  if not votes:
    return 0.0
  winner = max(votes.values(), key=len)  # of equal lengths, max returns the first inserted
  return float(correct[winner[0]])


def wilson_interval(correct: float, count: int, level: float = 0.95) -> tuple[float, float]:
  """Returns Wilson's score interval (low, high) of a share, which has a width also at 0 and at 1.

  Args:
    correct: how many of `count` independent problems, at least one, are right.
    level: intended coverage, above 0 and below 1.

  Source: Wilson 1927.
  """
  z = statistics.NormalDist().inv_cdf((1 + level) / 2)
  share, correction = correct / count, z * z / count
  centre = (share + correction / 2) / (1 + correction)
  half = z * math.sqrt(share * (1 - share) / count + correction / count / 4) / (1 + correction)
  low, high = max(0.0, centre - half), min(1.0, centre + half)
  return (0.0 if correct == 0 else low), (1.0 if correct == count else high)  # without rounding


def bootstrap_interval(values: np.ndarray, *, level: float = 0.95, resamples: int = 1000,
                       seed: int = 0) -> tuple[float, float]:
  """Returns a percentile interval (low, high) of a mean over problems, or NaNs without values.

  Each resample takes problems with replacement and, if samples are given, samples with replacement
  within each problem. Samples of one problem are alike, so resampling them without regard to their
  problem would give intervals that are too narrow. Resampling within problems counts the noise of
  the samples once more, so the intervals are rather too wide. Where all values are 0, or all are 1,
  resampling knows no width: there it is Wilson's interval of the problems.

  pass@k and maj@k are not means of samples, and repeated samples lower pass@k: for them pass one
  value per problem.

  Args:
    values: [P] one value per problem, or [P, n] samples; NaN means no sample.
    level: intended coverage.
    resamples: number of resampled means.
    seed: seed of the resampling.

  Raises:
    ValueError: a level outside (0, 1), or an array of another rank.
  """
  values = np.asarray(values, np.float64)
  if not 0 < level < 1:
    raise ValueError(f"level = {level}: allowed is 0 < level < 1.")
  if values.ndim not in (1, 2):
    raise ValueError(
        f"bootstrap_interval: values of shape {values.shape}; allowed are [P] and [P, n].")
  table, count = _packed(values if values.ndim == 2 else values[:, None])
  if not len(table):
    return math.nan, math.nan
  present = np.arange(table.shape[1]) < count[:, None]
  mean = float(np.sum(np.where(present, table, 0.0)) / np.sum(count))
  if mean in (0.0, 1.0) and set(np.unique(table[present])) <= {0.0, 1.0}:
    return wilson_interval(mean * len(table), len(table), level)
  rng = np.random.default_rng(seed)
  means = np.empty(resamples)
  for index in range(resamples):
    problem = rng.integers(0, len(table), len(table))
    resample = table[problem]
    if values.ndim == 2:
      column = (rng.random(resample.shape) * count[problem][:, None]).astype(int)
      resample = np.take_along_axis(resample, column, axis=1)
    totals = np.sum(np.where(present[problem], resample, 0.0), axis=1)
    means[index] = np.mean(totals / count[problem])
  low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
  return float(low), float(high)


def _packed(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Drops problems without samples and moves the NaNs of the others to the right.

  Returns:
    (samples [P, n], number of samples of each problem [P]).
  """
  table = table[~np.all(np.isnan(table), axis=1)]
  order = np.argsort(np.isnan(table), axis=1, kind="stable")
  return np.take_along_axis(table, order, axis=1), np.sum(~np.isnan(table), axis=1)
