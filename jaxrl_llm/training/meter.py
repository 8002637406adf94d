"""The mismatch meter's own pass: a few rows scored under the parameters that sampled them.

If a pass over all rows was made with these parameters, `batches.weighed_batch` uses it instead.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.objective.mismatch import mismatch_metrics
from jaxrl_llm.types import Rollout, Sampling, TokenStats


def meter(params, rollout: Rollout, sampling: Sampling, *, scorer, rows: int) -> dict:
  """Returns metrics of objective/mismatch.py on some rows of a rollout, spread over its prompts.

  Args:
    params: the parameters that sampled.
    rollout: B rows.
    sampling: temperature and vocabulary that the trainer scores with. If the sampler's vocabulary
      is another one, the gap contains the logarithm of the kept mass.
    scorer: (params, rollout, sampling) -> TokenStats in the trainer's numerics.
    rows: how many, at most B; row k B // rows for each k.
  """
  row_index = np.arange(rows) * rollout.tokens.shape[0] // rows
  subset = jax.tree.map(lambda x: x[row_index], rollout)
  stats = scorer(params, subset, sampling)
  return mismatch_metrics(stats.log_probs, subset.behavior_log_probs, valid_tokens(stats, subset))


def valid_tokens(stats: TokenStats, rollout: Rollout) -> jax.Array:
  """Returns [B, L] bool, True on sampled tokens that the scorer's vocabulary keeps. Rows without a
  valid reward count too.
  """
  return rollout.mask if stats.in_support is None else jnp.logical_and(
      rollout.mask, stats.in_support)
