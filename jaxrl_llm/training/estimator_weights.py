"""Weights that an estimator computes from a full optimizer batch before any gradient (m2po)."""

from jax import lax

from jaxrl_llm.config import StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.loss import anchor_of, estimator_columns
from jaxrl_llm.training.packing import Packing
from jaxrl_llm.training.whole_batch import stats_before
from jaxrl_llm.types import Params, TrainBatch


def with_estimator_weights(params: Params, batch, *, model: Model, cfg: StepConfig,
                           packing: Packing | None = None):
  """Returns the batch with `estimator_weights` [B, L] under the current policy, as constants, if
  the estimator reads statistics of the full batch. Otherwise, and if it is no TrainBatch, the batch
  is returned unchanged.

  They come from a pass over the full batch (whole_batch.py).
  """
  loss = cfg.loss
  if not isinstance(batch, TrainBatch) or (
      not estimators.spec(loss.estimator.name).batch_statistics):
    return batch
  stats, mask = stats_before(params, batch, model=model, cfg=cfg, packing=packing)
  log_probs = stats.log_probs
  anchor = anchor_of(batch, log_probs)
  columns = estimator_columns(batch, loss.estimator)
  weights = estimators.spec(loss.estimator.name).prepare(log_probs, anchor, batch.advantages, mask,
                                                         loss.estimator, **columns)
  return batch.replace(estimator_weights=lax.stop_gradient(weights))
