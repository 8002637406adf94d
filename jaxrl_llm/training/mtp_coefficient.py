"""The coefficient of the loss of the head that predicts two tokens ahead, where it is calibrated.

It is found before the gradient, from a pass over the whole optimizer batch, and carried in
`CalibratedState.mtp_coefficient` from update to update and into checkpoints.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_llm.config import LossConfig, StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective import mtp
from jaxrl_llm.objective.estimators.common import masked_log_ratio
from jaxrl_llm.training.packing import Packing
from jaxrl_llm.training.whole_batch import stats_before
from jaxrl_llm.types import CalibratedState, Mean, Params, SupervisedBatch, TrainBatch, TrainState


def is_carried(cfg: LossConfig) -> bool:
  """Whether states of a run with this loss carry a coefficient."""
  return mtp.is_calibrated(cfg.mtp)


def with_carried(state: TrainState, cfg: LossConfig, leaf) -> TrainState:
  """The state with `leaf` (a first value, its shape or its sharding) in the place of the
  coefficient, if states of a run with this loss carry one.
  """
  if not is_carried(cfg):
    return state
  return CalibratedState(state.step, state.params, state.opt_state, state.frozen, leaf)


def carried(state: TrainState) -> jax.Array:
  """The coefficient of the last update, a scalar f32.

  Raises:
    ValueError: the state carries none.
  """
  if not isinstance(state, CalibratedState):
    raise ValueError("the loss has a calibrated coefficient, and the state carries none. Fix: "
                     "with_carried(state, cfg, jnp.float32(0)).")
  return state.mtp_coefficient


def needs_coefficient(batch: TrainBatch | SupervisedBatch, cfg: StepConfig) -> bool:
  """Whether the loss needs a calibrated coefficient; False for supervised batches."""
  return isinstance(batch, TrainBatch) and is_carried(cfg.loss)


def with_coefficient(params: Params, batch: TrainBatch, last: jax.Array, *, model: Model,
                     cfg: StepConfig, packing: Packing | None = None
                     ) -> tuple[TrainBatch, jax.Array, dict]:
  """Calibrates the coefficient under the current policy.

  In the rollout's first optimizer batch nothing has changed yet. What differs from the anchor there
  is rounding between two programs, and counts as 0.

  Args:
    last: scalar f32, the coefficient of the update before.

  Returns:
    (the batch with `mtp_coefficient` [B], the coefficient as a scalar, metrics).
  """
  stats, mask = stats_before(params, batch, model=model, cfg=cfg, packing=packing,
                             stats=frozenset({"mtp_log_probs"}))
  mask = mtp.predicted(mask)
  moved = mask if batch.at_anchor is None else mask & ~jnp.any(batch.at_anchor)
  change = masked_log_ratio(stats.log_probs, batch.anchor_log_probs, moved)
  mtp_change = masked_log_ratio(stats.mtp_log_probs, batch.mtp_anchor_log_probs, moved)
  coefficient = lax.stop_gradient(mtp.calibrated(change, mtp_change, moved, last, cfg.loss.mtp))
  metrics = {"mtp/coefficient": Mean(coefficient, jnp.float32(1)),
             "mtp/cosine": Mean(mtp.cosine(change, mtp_change),
                                jnp.any(moved).astype(jnp.float32))}
  rows = jnp.broadcast_to(coefficient, batch.advantages.shape[:1])
  return batch.replace(mtp_coefficient=rows), coefficient, metrics
