"""A pass over a full optimizer batch before its gradient, as constants."""

import functools

from jax import lax
from jaxtyping import Array, Bool

from jaxrl_llm.config import StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import policy_stats, regularizer_weights
from jaxrl_llm.training.micro_batches import join_rows, split_rows
from jaxrl_llm.training.packing import Packing, map_rows
from jaxrl_llm.types import Params, TokenStats, TrainBatch


def stats_before(params: Params, batch: TrainBatch, *, model: Model, cfg: StepConfig,
                 packing: Packing | None = None,
                 stats: frozenset[str] = frozenset()
                 ) -> tuple[TokenStats, Bool[Array, "B L"]]:
  """Returns (TokenStats [B, L] under the current policy, the mask [B, L] of the tokens that count).

  The pass goes over the same micro-batches as the loss, so it needs no more memory. Tokens outside
  the vocabulary and dropped rows, whose tokens have no weight in any aggregation, do not count.

  Args:
    stats: further statistics, as in `row_stats`.
  """
  run = functools.partial(policy_stats, lax.stop_gradient(params), model=model, cfg=cfg.loss,
                          stats=stats)
  if packing is not None:

    def run_packed(rows, bins):
      return run(rows.replace(bins=bins))

    token_stats = map_rows(run_packed, batch, packing, model.constrain)
  elif cfg.micro_batches == 1:
    token_stats = run(batch)
  else:
    token_stats = join_rows(lax.map(run, split_rows(batch, cfg.micro_batches)))
  mask = batch.rollout.mask
  for support in (token_stats.in_support, batch.in_support):
    mask = mask if support is None else mask & support
  return token_stats, mask & (regularizer_weights(batch) > 0)
