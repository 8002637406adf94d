"""PIPO: after each rollout batch, one more step on the batch before, weighted by whether the reward
rose since.

Source: arXiv 2604.00860, in the form of its versions 4 and 5: a leaky rectifier without a clamp.
`xi_clip` is ours.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Int

from jaxrl_llm.config import BatchConfig
from jaxrl_llm.fields import option
from jaxrl_llm.objective import advantages as advantage_table
from jaxrl_llm.ops import masked
from jaxrl_llm.training.batches import weighed_batch, with_weights
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import TrainBatch

EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Pipo:
  """Hyperparameters of `pipo`: a further step on the previous batch, weighted by the change of the
  reward.
  """

  history: int = option(8, "K, mean rewards that the fresh one is compared with", low=2)
  negative_slope: float = option(0.1, "weight of a fall of the reward against a rise", low=0.0)
  xi_clip: float | None = option(3.0, "bound on the standardised change; none: unbounded", low=0.0)
  threshold: float = option(0.0, "takes no step where the standardised change is smaller", low=0.0)


@struct.dataclass
class PipoState:
  """State for the next iteration; part of a checkpoint.

  Attributes:
    means: [K] f32, mean rewards of the last K batches, the newest last.
    count: scalar int32, batches seen.
    batch: the previous rollout batch as one TrainBatch with scaled advantages; zeros at first.
  """

  means: Float[Array, " K"]
  count: Int[Array, ""]
  batch: TrainBatch


def scaled_advantages(batch: TrainBatch, keep, *, group: bool) -> Float[Array, "B L"]:
  """Scales the advantages of each group to mean absolute value 1, as constants.

    a_i = G A_i / sum over the group of |A_j|

  A_i is the masked mean of a row's advantages, a_i is broadcast to its tokens, and G counts kept
  rows.

  Args:
    batch: B rows.
    keep: [B] bool.
    group: False for advantages that compare no group (a critic's), which stay as they are.
  """
  if not group:
    return batch.advantages
  mask, ids = batch.rollout.mask, batch.rollout.group_id
  keep = keep.astype(jnp.float32)
  per_row = masked.row_mean(batch.advantages, mask)[:, 0] * keep
  total = jnp.maximum(masked.group_sum(jnp.abs(per_row), ids), EPSILON)
  scaled = masked.group_sum(keep, ids) * per_row / total
  return lax.stop_gradient(masked.masked(jnp.broadcast_to(scaled[:, None], mask.shape), mask))


def progress(means: np.ndarray, count: int, fresh: float,
             cfg: Pipo) -> tuple[float, float] | None:
  """Returns (xi, phi(xi)) of a fresh batch's mean reward against the last K, or None to take no
  step.

    xi = (fresh - mean) / (std + 1e-6), sample std;   phi(x) = x if x >= 0, else negative_slope x

  No step is taken if fewer than K batches were seen, |xi| is below the threshold, or the fresh mean
  is not finite (nothing was scored).
  """
  if count < cfg.history or not np.isfinite(fresh):
    return None
  xi = (fresh - float(np.mean(means))) / (float(np.std(means, ddof=1)) + EPSILON)
  if cfg.xi_clip is not None:
    xi = float(np.clip(xi, -cfg.xi_clip, cfg.xi_clip))
  if abs(xi) < cfg.threshold:
    return None
  return xi, xi if xi >= 0 else cfg.negative_slope * xi


def remember(state: PipoState, batch: TrainBatch, fresh: float) -> PipoState:
  """Returns `state` with this batch and its mean reward `fresh`; a mean that is not finite is left
  out of the history.
  """
  if not np.isfinite(fresh):
    return state.replace(batch=batch)
  means = np.append(np.asarray(state.means)[1:], np.float32(fresh))
  return PipoState(means, np.int32(state.count + 1), batch)


def replayed_batch(rollout, rewards, keep, scores: Scores, *, cfg: BatchConfig) -> TrainBatch:
  """Returns the full rollout batch as one optimizer batch with PIPO's scaled advantages."""
  batch, _ = weighed_batch(rollout, rewards, keep, scores, cfg=cfg)
  scaled = scaled_advantages(batch, keep, group=advantage_table.spec(cfg.advantage.name).group)
  return with_weights(batch.replace(advantages=scaled), keep, cfg)
