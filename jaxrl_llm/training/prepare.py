"""Statistics of a whole optimizer batch that an estimator needs before any gradient (m2po)."""

import jax
from jax import lax

from jaxrl_llm.config import StepConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.loss import policy_stats
from jaxrl_llm.training.micro_batches import join_rows, split_rows
from jaxrl_llm.types import TrainBatch


def needed(batch, cfg: StepConfig) -> bool:
  """Whether the estimator of `cfg.loss` reads statistics of the whole batch, and `batch` is one of
  its kind.
  """
  return isinstance(batch, TrainBatch) and estimators.spec(cfg.loss.estimator.name).batch_statistics


def prepare(params, batch: TrainBatch, *, model, cfg: StepConfig) -> TrainBatch:
  """The batch with `estimator_weights` [B, L]: `prepare` of the estimator on the current log-probs,
  no gradient.

  The pass goes over the same micro-batches as the loss, so it needs no more memory.
  """
  params = lax.stop_gradient(params)
  run = lambda part: policy_stats(params, part, model=model, cfg=cfg.loss)
  if cfg.micro_batches == 1:
    stats = run(batch)
  else:
    stats = join_rows(lax.map(run, split_rows(batch, cfg.micro_batches)))
  log_probs, mask = stats.log_probs, batch.rollout.mask
  anchor = log_probs if batch.anchor_log_probs is None else batch.anchor_log_probs
  for inside in (stats.in_support, batch.in_support):
    mask = mask if inside is None else mask & inside
  # Rows that were taken out whole enter no statistic: their tokens have no weight in any
  # aggregation.
  kept = batch.loss_weights if batch.regularizer_weights is None else batch.regularizer_weights
  mask &= kept > 0
  loss = cfg.loss
  weights = estimators.spec(loss.estimator.name).prepare(log_probs, anchor, batch.advantages, mask,
                                                         loss.estimator)
  return batch.replace(estimator_weights=jax.lax.stop_gradient(weights))
