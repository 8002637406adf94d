"""Statistics of sampled rows under given parameters: the anchor, the reference."""

import functools

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array

from jaxrl_llm.config import StepConfig
from jaxrl_llm.objective.loss import row_stats
from jaxrl_llm.training.rows import join_rows, split_rows
from jaxrl_llm.types import Rollout, Sampling, TokenStats


@struct.dataclass
class Scores:
  """What the passes over a rollout found, each [B, L], or None where nothing reads it.

  Attributes:
    anchor_log_probs: None where the anchor is the current policy of the one optimizer batch.
    ref_log_probs: of the KL reference.
    sum_pi_squared, values: f32 under the parameters that scored the anchor.
    in_support: bool, False outside the anchor's pruned vocabulary.
  """

  anchor_log_probs: Array | None = None
  ref_log_probs: Array | None = None
  sum_pi_squared: Array | None = None
  values: Array | None = None
  in_support: Array | None = None


def score(params, rollout: Rollout, sampling: Sampling, *, model, cfg: StepConfig,
          stats: frozenset[str] = frozenset()) -> TokenStats:
  """TokenStats [B, L] of `rollout.tokens`, at the sampler's temperature and support; entry 0 is 0.

  Args:
    params: of `model`.
    rollout: rows; prompt and padding positions are scored too, and mean nothing.
    sampling: as the sampler's; a temperature of 0 (greedy) is scored at 1.
    cfg: `micro_batches` parts of the rows are scored one after the other.
    stats: further statistics, see ops/token_stats.py, and `values`.
  """
  temperature = jnp.where(sampling.temperature == 0, 1.0, sampling.temperature)
  run = functools.partial(row_stats, params, model=model, temperature=temperature, stats=stats, top_k=sampling.top_k,
                          top_p=sampling.top_p, min_p=sampling.min_p)
  if cfg.micro_batches == 1:
    return run(rollout.tokens, rollout.length)
  parts = split_rows((rollout.tokens, rollout.length), cfg.micro_batches)
  return join_rows(lax.map(lambda rows: run(*rows), parts))
