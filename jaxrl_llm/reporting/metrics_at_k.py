"""pass@k of several samples per problem. Source: arXiv 2107.03374, equation 1."""

import numpy as np


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
  """Returns the probability that k of the samples, without replacement, contain a correct one.

    pass@k = 1 - C(n-c, k) / C(n, k) = 1 - prod_{i=n-c+1..n} (1 - k/i)

  It is the unbiased estimate of 1 - (1-p)^k from n independent samples; the plug-in estimate
  1 - (1-c/n)^k is biased.

  Args:
    num_samples: n, at least k.
    num_correct: c, 0 to n.
    k: at least 1.

  Raises:
    ValueError: an argument outside these ranges.
  """
  n, c = num_samples, num_correct
  if not (1 <= k <= n and 0 <= c <= n):
    raise ValueError(
        f"pass_at_k(num_samples={n}, num_correct={c}, k={k}): allowed are 1 <= k <= num_samples "
        "and 0 <= num_correct <= num_samples.")
  if n - c < k:
    return 1.0
  return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1, dtype=np.float64)))
