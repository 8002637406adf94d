"""PIPO: after each rollout batch, one more step on the batch before, weighted by whether the reward
rose since.

Source: arXiv 2604.00860 (v4-v5 form: a leaky rectifier, no clamp beyond `xi_clip`, which is ours);
methods A7.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Float

from jaxrl_llm.config import PipoConfig
from jaxrl_llm.ops import masked
from jaxrl_llm.types import TrainBatch

EPSILON = 1e-6


@struct.dataclass
class PipoState:
  """What the next iteration needs; part of a checkpoint.

  Attributes:
    means: [K] f32, mean rewards of the last batches, the newest last.
    count: int32, batches seen.
    batch: the previous rollout batch as one TrainBatch, its advantages scaled; zeros before the
      first.
  """

  means: Float[Array, " K"]
  count: Any
  batch: TrainBatch


def scaled_advantages(batch: TrainBatch, keep, *, group: bool) -> Float[Array, "B L"]:
  """a_i = G A_i / sum over the group of |A_j|, A_i the masked mean of a row's advantages, broadcast
  to its tokens.

  Advantages that compare no group (`group` False: a critic's) stay as they are. G counts kept rows.
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
             cfg: PipoConfig) -> tuple[float, float] | None:
  """(xi, phi(xi)) of a fresh batch's mean reward against the last K, or None where no step is
  taken.

    xi = (fresh - mean) / (std + 1e-6), sample std;   phi(x) = x where x >= 0, else negative_slope x

  None: fewer than K batches seen, |xi| below the threshold, or a fresh mean that is not finite
  (nothing scored).
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
  """`state` with this batch in place of the one before; a mean that is not finite leaves the
  history alone.
  """
  if not np.isfinite(fresh):
    return state.replace(batch=batch)
  means = np.append(np.asarray(state.means)[1:], np.float32(fresh))
  return PipoState(means, np.int32(state.count + 1), batch)
