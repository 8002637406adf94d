"""Log-probabilities of sampled rows under given parameters: the anchor, the reference."""

import functools

import jax.numpy as jnp
from jax import lax

from jaxrl_llm.config import StepConfig
from jaxrl_llm.objective.loss import row_stats
from jaxrl_llm.training.train_step import join_rows, split_rows
from jaxrl_llm.types import Rollout, Sampling, TokenStats


def score(params, rollout: Rollout, sampling: Sampling, *, model, cfg: StepConfig,
          stats: frozenset[str] = frozenset()) -> TokenStats:
  """TokenStats [B, L] of `rollout.tokens`, at the sampler's temperature; entry 0 is 0.

  Args:
    params: of `model`.
    rollout: rows; prompt and padding positions are scored too, and mean nothing.
    sampling: as the sampler's; a temperature of 0 (greedy) is scored at 1.
    cfg: `micro_batches` parts of the rows are scored one after the other.
    stats: further statistics, see ops/token_stats.py.
  """
  temperature = jnp.where(sampling.temperature == 0, 1.0, sampling.temperature)
  run = functools.partial(row_stats, params, model=model, temperature=temperature, stats=stats)
  if cfg.micro_batches == 1:
    return run(rollout.tokens, rollout.length)
  parts = split_rows((rollout.tokens, rollout.length), cfg.micro_batches)
  return join_rows(lax.map(lambda rows: run(*rows), parts))
