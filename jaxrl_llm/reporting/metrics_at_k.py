"""Metrics of several samples per problem, and how far they can be trusted. Plain numpy, on the
host.

Source: methods V2 (unbiased pass@k, golden values, cluster bootstrap); tie rule of maj@k: own
choice.
"""

import math
from collections.abc import Hashable, Sequence

import numpy as np


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
  """Probability that k of the samples, drawn without replacement, hold a correct one.

    pass@k = 1 - C(n-c, k) / C(n, k) = 1 - prod_{i=n-c+1..n} (1 - k/i)

  It is the unbiased estimate of 1 - (1-p)^k from n independent samples; the plug-in 1 - (1-c/n)^k
  is biased.

  Args:
    num_samples: n, at least k.
    num_correct: c, 0 to n.
    k: at least 1.

  Raises:
    ValueError: outside these ranges.
  """
  n, c = num_samples, num_correct
  if not (1 <= k <= n and 0 <= c <= n):
    raise ValueError(
        f"pass_at_k(num_samples={n}, num_correct={c}, k={k}): allowed are 1 <= k <= num_samples "
        "and "
        "0 <= num_correct <= num_samples.")
  if n - c < k:
    return 1.0
  return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1, dtype=np.float64)))


def avg_at_k(correct: np.ndarray) -> float:
  """Share of correct samples; the mean over problems of this is avg@k, whose expectation is
  pass@1's.

  Args:
    correct: [n] bool, samples of one problem; not a number where there are none.
  """
  return float(np.mean(correct)) if len(correct) else math.nan


def maj_at_k(keys: Sequence[Hashable | None], correct: Sequence[bool]) -> float:
  """1 if the most frequent answer is correct, else 0; samples without an answer do not vote.

  A tie goes to the answer that appeared first: for independent samples this is a fair draw, and it
  is the same draw whenever it is asked. Where the members of a winning group disagree on being
  correct, the group's first decides.

  Args:
    keys: [n] equal for equivalent answers; None: no answer.
    correct: [n].

  Returns:
    0.0 where nobody voted.
  """
  votes: dict[Hashable, list[int]] = {}
  for at, key in enumerate(keys):
    if key is not None:
      votes.setdefault(key, []).append(at)
  if not votes:
    return 0.0
  winner = max(votes.values(), key=len)  # insertion order breaks ties
  return float(correct[winner[0]])


def bootstrap_interval(values: np.ndarray, *, level: float = 0.95, resamples: int = 1000,
                       seed: int = 0) -> tuple[float, float]:
  """Percentile interval of a mean over problems, by a bootstrap whose clusters are the problems.

  Problems are drawn with replacement and, where samples are given, the samples within each drawn
  problem: samples of one problem are alike, and drawing them from one urn would give intervals that
    are too narrow. The second draw counts
  the noise of samples once more, so these intervals err on the wide side. pass@k and maj@k are not
  means of samples (a drawn set repeats samples, which lowers pass@k): give their values per
    problem.

  Args:
    values: [P] one value per problem, or [P, n] samples; not a number means no sample.
    level: coverage aimed at.
    resamples: bootstrap draws.
    seed: of the draws.

  Returns:
    (low, high); not numbers where no problem has a value.

  Raises:
    ValueError: a level outside (0, 1), or an array of another rank.
  """
  values = np.asarray(values, np.float64)
  if not 0 < level < 1:
    raise ValueError(f"level = {level}: allowed is 0 < level < 1.")
  if values.ndim not in (1, 2):
    raise ValueError(
        f"bootstrap_interval: values of shape {values.shape}; allowed are [P] and [P, n].")
  draw_samples = values.ndim == 2
  rows = values if draw_samples else values[:, None]
  rows = rows[~np.all(np.isnan(rows), axis=1)]
  if not len(rows):
    return math.nan, math.nan
  count = np.sum(~np.isnan(rows), axis=1)
  # samples to the left
  rows = np.take_along_axis(rows, np.argsort(np.isnan(rows), axis=1, kind="stable"), axis=1)
  real = np.arange(rows.shape[1]) < count[:, None]
  rng = np.random.default_rng(seed)
  means = np.empty(resamples)
  for draw in range(resamples):
    problem = rng.integers(0, len(rows), len(rows))
    drawn = rows[problem]
    if draw_samples:
      column = (rng.random(drawn.shape) * count[problem][:, None]).astype(int)
      drawn = np.take_along_axis(drawn, column, axis=1)
    means[draw] = np.mean(np.sum(np.where(real[problem], drawn, 0.0), axis=1) / count[problem])
  low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
  return float(low), float(high)
