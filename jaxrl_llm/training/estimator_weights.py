"""Weights that an estimator computes from a whole optimizer batch before any gradient (m2po)."""

import functools

from jax import lax

from jaxrl_llm.config import StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.loss import policy_stats
from jaxrl_llm.training.micro_batches import join_rows, split_rows
from jaxrl_llm.training.packing import Packing, map_rows
from jaxrl_llm.types import Params, SupervisedBatch, TrainBatch


def needs_weights(batch: TrainBatch | SupervisedBatch, cfg: StepConfig) -> bool:
  """Whether the estimator of `cfg.loss` reads statistics of the whole batch; False for supervised
  batches.
  """
  return isinstance(batch, TrainBatch) and estimators.spec(cfg.loss.estimator.name).batch_statistics


def with_estimator_weights(params: Params, batch: TrainBatch, *, model: Model, cfg: StepConfig,
                           packing: Packing | None = None) -> TrainBatch:
  """The batch with `estimator_weights` [B, L] under the current policy, as constants.

  The pass goes over the same micro-batches as the loss, so it needs no more memory. Tokens outside
  the vocabulary and dropped rows, whose tokens have no weight in any aggregation, enter no
  statistic.
  """
  loss = cfg.loss
  run = functools.partial(policy_stats, lax.stop_gradient(params), model=model, cfg=loss)
  if packing is not None:

    def run_packed(rows, bins):
      return run(rows.replace(bins=bins))

    stats = map_rows(run_packed, batch, packing, model.constrain)
  elif cfg.micro_batches == 1:
    stats = run(batch)
  else:
    stats = join_rows(lax.map(run, split_rows(batch, cfg.micro_batches)))
  log_probs, mask = stats.log_probs, batch.rollout.mask
  anchor = log_probs if batch.anchor_log_probs is None else batch.anchor_log_probs
  for inside in (stats.in_support, batch.in_support):
    mask = mask if inside is None else mask & inside
  kept = batch.loss_weights if batch.regularizer_weights is None else batch.regularizer_weights
  weights = estimators.spec(loss.estimator.name).prepare(log_probs, anchor, batch.advantages,
                                                         mask & (kept > 0), loss.estimator)
  return batch.replace(estimator_weights=lax.stop_gradient(weights))
