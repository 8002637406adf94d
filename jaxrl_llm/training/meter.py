"""The mismatch meter's own pass: a few rows scored under the parameters that sampled them.

Where a pass over all rows has been made with those parameters, `batches.weighed_batch` reads the
meter from it.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.objective.mismatch import mismatch_metrics
from jaxrl_llm.types import Rollout, Sampling, TokenStats


def meter(params, rollout: Rollout, sampling: Sampling, *, scorer, rows: int) -> dict:
  """Metrics of objective/mismatch.py on `rows` rows, row k B // rows for each k: many prompts.

  Args:
    params: those that sampled.
    rollout: B rows.
    sampling: what the trainer scores with. Where it prunes another vocabulary than the sampler, the
      gap contains the logarithm of the kept mass.
    scorer: (params, rollout, sampling) -> TokenStats in the trainer's numerics.
    rows: at most B.
  """
  at = np.arange(rows) * rollout.tokens.shape[0] // rows
  some = jax.tree.map(lambda x: x[at], rollout)
  stats = scorer(params, some, sampling)
  return mismatch_metrics(stats.log_probs, some.behavior_log_probs, counted(stats, some))


def counted(stats: TokenStats, rollout: Rollout) -> jax.Array:
  """[B, L] bool: sampled tokens that the scorer's vocabulary keeps. A row without a valid reward
  counts.
  """
  return rollout.mask if stats.in_support is None else jnp.logical_and(
      rollout.mask, stats.in_support)
