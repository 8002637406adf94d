"""Statistics of sampled rows under given parameters: the anchor, the reference."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array

from jaxrl_llm.config import StepConfig
from jaxrl_llm.objective.loss import Distribution, completion_of, row_stats, stop_rule
from jaxrl_llm.training.micro_batches import join_rows, split_rows
from jaxrl_llm.types import Rollout, Sampling, TokenStats


@struct.dataclass
class Scores:
  """What the passes over a rollout found, each [B, L], or None where nothing reads it.

  Attributes:
    anchor_log_probs: None where the anchor is the current policy of the one optimizer batch.
    ref_log_probs: of the KL reference.
    sum_pi_squared, values: f32 under the parameters that scored the anchor.
    in_support: bool, False outside the anchor's pruned vocabulary.
    own: log_probs and in_support under the very parameters that sampled, for the mismatch meter;
      None where no pass over all rows was made with them.
  """

  anchor_log_probs: Array | None = None
  ref_log_probs: Array | None = None
  sum_pi_squared: Array | None = None
  values: Array | None = None
  in_support: Array | None = None
  own: TokenStats | None = None


RULES = frozenset({"top_k", "top_p", "min_p"})


def score(params, rollout: Rollout, sampling: Sampling, *, model, cfg: StepConfig,
          stats: frozenset[str] = frozenset(), rules: frozenset[str] = RULES) -> TokenStats:
  """TokenStats [B, L] of `rollout.tokens`, at the sampler's temperature and support; entry 0 is 0.

  Args:
    params: of `model`.
    rollout: rows; prompt and padding positions are scored too, and mean nothing.
    sampling: as the sampler's; a temperature of 0 (greedy) is scored at 1.
    cfg: `micro_batches` parts of the rows are scored one after the other, without the stop tokens
      that `loss.min_new_tokens` forbids. With `loss.max_new_tokens`, completions alone are scored,
      the rest is 0.
    stats: further statistics, see ops/token_stats.py, and `values`.
    rules: names of those in `sampling` that may prune; others are left out of the program, and
      their values unread.
  """
  temperature = jnp.where(sampling.temperature == 0, 1.0, sampling.temperature)
  values = {name: getattr(sampling, name) for name in sorted(rules)}
  run = lambda rows: row_stats(
      params, rows.tokens, rows.length, model=model, stats=stats,
      distribution=Distribution(temperature, values, stop_rule(rows, cfg.loss)),
      completion=completion_of(rows, cfg.loss))
  if cfg.micro_batches == 1:
    return run(rollout)
  return join_rows(lax.map(run, split_rows(rollout, cfg.micro_batches)))
