"""The coefficient of the loss of the head that predicts two tokens ahead, where it is calibrated.

It comes before the gradient, from a pass over the full optimizer batch, and is carried from update
to update and into checkpoints.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxrl_llm.objective.estimators.common import masked_log_ratio
from jaxrl_llm.objective.row_stats import predicted_ahead
from jaxrl_llm.ops import masked
from jaxrl_llm.training.transforms import StepParts, Transform
from jaxrl_llm.training.whole_batch import stats_before
from jaxrl_llm.types import Mean, TrainBatch

COEFFICIENT = "mtp_coefficient"  # the column that the loss reads, [B] and the same on all rows


class Calibration(Transform):
  """Finds the coefficient under the current policy before each gradient.

  In the rollout's first optimizer batch nothing has changed yet. A difference from the anchor there
  is rounding between two programs, and counts as 0.

  Args:
    cfg: numbers of the loss.
    name: name of the loss.
    calibrate: as in `losses.mtp`.
  """

  passes = 1

  def __init__(self, cfg, name: str, calibrate: Callable):
    self._cfg, self.name, self._calibrate = cfg, name, calibrate

  def first(self) -> Float[Array, ""]:
    """Returns the coefficient before the first update."""
    return jnp.float32(0)

  def before(self, params, batch: TrainBatch, carried, parts: StepParts):
    """Returns (the batch with the column COEFFICIENT, the coefficient as a scalar, metrics)."""
    if carried is None:
      raise ValueError(f"the loss {self.name!r} has a calibrated coefficient, and the state "
                       "carries none. Fix: transforms.with_carried(state, cfg, of).")
    stats, mask = stats_before(params, batch, model=parts.model, cfg=parts.cfg,
                               packing=parts.packing, stats=frozenset({"mtp_log_probs"}))
    mask = predicted_ahead(mask)
    moved = mask if batch.at_anchor is None else mask & ~jnp.any(batch.at_anchor)
    change = masked_log_ratio(stats.log_probs, batch.anchor_log_probs, moved)
    is_code_form = getattr(self._cfg, "code_compat", False)
    mtp_anchor = (batch.anchor_log_probs if is_code_form
                  else batch.columns["mtp_anchor_log_probs"])
    mtp_change = masked_log_ratio(stats.mtp_log_probs, mtp_anchor, moved)
    if is_code_form:
      change, mtp_change, moved = (
          completion_columns(x, batch.rollout.prompt_length, parts.cfg.loss.max_new_tokens)
          for x in (change, mtp_change, moved))
    coefficient = lax.stop_gradient(self.coefficient(change, mtp_change, moved, carried))
    metrics = {"mtp/coefficient": Mean(coefficient, jnp.float32(1)),
               "mtp/cosine": Mean(cosine(change, mtp_change),
                                  jnp.any(moved).astype(jnp.float32))}
    rows = jnp.broadcast_to(coefficient, batch.advantages.shape[:1])
    return batch.replace(columns={**batch.columns, COEFFICIENT: rows}), coefficient, metrics

  def coefficient(self, change: Float[Array, "B L"], mtp_change: Float[Array, "B L"], mask,
                  last: Float[Array, ""]) -> Float[Array, ""]:
    """Returns the coefficient; arguments as for `calibrate` in `losses.mtp`."""
    return scalar(self._calibrate(change, mtp_change, mask, last, self._cfg))


def scalar(coefficient) -> Float[Array, ""]:
  """Returns what `calibrate` returned as f32.

  Raises:
    TypeError: it is no scalar.
  """
  coefficient = jnp.asarray(coefficient)
  if coefficient.shape != ():
    raise TypeError(f"`calibrate` returned {coefficient.dtype}{list(coefficient.shape)}; a scalar "
                    "was expected")
  return coefficient.astype(jnp.float32)


def completion_columns(x: Array, prompt_length: Int[Array, " B"], width: int | None) -> Array:
  """Returns the columns [B, width] that a completion may fill, 0 beyond the row; None: all of x."""
  if width is None:
    return x
  columns = prompt_length[:, None] + jnp.arange(width)
  last = x.shape[1] - 1
  return masked.masked(jnp.take_along_axis(x, jnp.minimum(columns, last), 1),
                       columns <= last).astype(x.dtype)


def cosine(change: Float[Array, "B L"], mtp_change: Float[Array, "B L"]) -> Float[Array, ""]:
  """Returns the cosine of the two changes; 0 where one of them is 0."""
  size = jnp.sqrt(jnp.sum(jnp.square(change)) * jnp.sum(jnp.square(mtp_change)))
  return masked.safe_divide(jnp.sum(change * mtp_change), size)
