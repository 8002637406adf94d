"""Log-probs and other statistics of sampled rows under given parameters."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array

from jaxrl_llm.config import StepConfig
from jaxrl_llm.objective.loss import completion_of, stop_rule
from jaxrl_llm.objective.row_stats import Distribution, row_stats
from jaxrl_llm.training.micro_batches import join_rows, split_rows
from jaxrl_llm.training.packing import Packing, map_rows
from jaxrl_llm.types import Bins, Rollout, Sampling, TokenStats


@struct.dataclass
class Scores:
  """Scores of a rollout. Each is [B, L], or None if nothing reads it.

  Attributes:
    anchor_log_probs: f32, nats; None if the anchor is the current policy, as with one optimizer
      batch per rollout.
    ref_log_probs: f32, nats, of the KL reference.
    sum_pi_squared, values, entropy: f32, under the parameters that scored the anchor.
    in_support: bool, False outside the anchor's pruned vocabulary.
    metered: log_probs and in_support under the parameters that sampled, for the mismatch meter;
      None if no pass over all rows was made with them.
    current_log_probs: f32, nats, for the advantage, where the anchor is the current policy.
    columns: further arrays by name (training/columns.py).
    step: int32 scalar, optimizer step of the current policy, for an interpolated anchor; None
      without one.
    reward_parts: [B, K] f32, from the verdicts; not read where a completion is not kept.
  """

  anchor_log_probs: Array | None = None
  ref_log_probs: Array | None = None
  sum_pi_squared: Array | None = None
  values: Array | None = None
  in_support: Array | None = None
  metered: TokenStats | None = None
  entropy: Array | None = None
  current_log_probs: Array | None = None
  columns: dict[str, Array] | None = None
  reward_parts: Array | None = None
  step: Array | None = None



def score(params, rollout: Rollout, sampling: Sampling, *, model, cfg: StepConfig,
          stats: frozenset[str] = frozenset(), rules: frozenset[str] | None = None,
          packing: Packing | None = None) -> TokenStats:
  """Returns TokenStats [B, L] of `rollout.tokens` at a sampler's temperature and vocabulary; entry
  0 is 0.

  Args:
    params: of `model`.
    rollout: B rows. Prompt and padding positions are scored too, and mean nothing.
    sampling: as the sampler's; a temperature of 0 (greedy) is scored at 1.
    cfg: the rows are scored in `micro_batches` parts, one after the other, without the stop tokens
      that `loss.min_new_tokens` forbids. With `loss.max_new_tokens`, only completions are scored
      and the rest is 0.
    stats: further statistics, see ops/token_stats.py, and `values` and `mtp_log_probs`.
    rules: names of the sampler's rules that may prune. The others are left out of the program, and
      their values are not read. None: all may.
    packing: of the rows; replaces the `micro_batches` parts. Positions after a row's end are then
      0, as in the prompt.
  """
  temperature = jnp.where(sampling.temperature == 0, 1.0, sampling.temperature)
  values = {name: value for name, value in sampling.rules.items() if rules is None or name in rules}

  def run(rows: Rollout, bins: Bins | None = None) -> TokenStats:
    distribution = Distribution(temperature, values, stop_rule(rows, cfg.loss))
    return row_stats(params, rows.tokens, rows.length, model=model, stats=stats,
                     distribution=distribution, completion=completion_of(rows, cfg.loss),
                     bins=bins, replayed=rows.routing)

  return in_pieces(run, rollout, packing, model, cfg)


def in_pieces(run: Callable, rollout: Rollout, packing: Packing | None, model, cfg: StepConfig):
  """Returns the results of `run` for all rows, in the pieces that `score` describes."""
  if packing is not None:
    return map_rows(run, rollout, packing, model.constrain)
  if cfg.micro_batches == 1:
    return run(rollout)
  return join_rows(lax.map(run, split_rows(rollout, cfg.micro_batches)))
