"""What TPO is compared with in its paper: GRPO with a pull to the snapshot, and TPO without a part.

Each is a row against its group, so that it goes with `aggregation=sequence_sum` and with the
advantage of the preset `tpo`. A group is informative if its rewards differ.
"""

import dataclasses

import jax.numpy as jnp

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators.groups import Rows, group_loss
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import NoNumbers


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """Hyperparameters of `snapshot_grpo`."""

  clip: float = option(0.2, "the ratio's window is 1 - clip to 1 + clip", low=0.0)
  pull: float = option(0.04, "weight of the divergence from the snapshot", low=0.0)
  drop_equal: bool = option(False, "groups of equal rewards have no loss, and do not count")


def informative(rows: Rows):
  """Returns [B], 1 in groups whose rewards differ, else 0."""
  return (masked.group_max(jnp.abs(rows.reward), rows.group_id) > 0).astype(rows.reward.dtype)


@group_loss("snapshot_grpo", Snapshot, anchor="behavior")
def snapshot_grpo(rows: Rows, cfg: Snapshot):
  """GRPO on sequences, as in TPO's code: l = sum_t l_t, r = e^l,

    loss of a row = -min(r A, clip(r) A) + pull (e^-l + l - 1)

  Coefficient: r A within the window on the side of A, less pull (1 - e^-l).

  Source: github.com/JeanKaddour/tpo, src/tpo/experiments/causal_ablations.py.
  """
  log_ratio = jnp.clip(rows.log_ratio(rows.anchor_log_probs), -20.0, 20.0)
  ratio = jnp.exp(log_ratio)
  inside = jnp.where(rows.reward > 0, ratio <= 1 + cfg.clip, ratio >= 1 - cfg.clip)
  coefficient = inside * ratio * rows.reward - cfg.pull * (1 - jnp.exp(-log_ratio))
  if not cfg.drop_equal:
    return coefficient
  counts = jnp.any(rows.mask, -1)
  share = jnp.sum(informative(rows) * counts) / jnp.maximum(jnp.sum(counts), 1)
  return coefficient * informative(rows) / jnp.maximum(share, 1 / jnp.maximum(jnp.sum(counts), 1))


def _share(rows: Rows, score):
  """Returns softmax of `score` over the group, [B]."""
  return jnp.exp(score - rows.log_sum_exp(score))


@group_loss("tpo_without_anchor", NoNumbers, anchor="behavior")
def tpo_without_anchor(rows: Rows, cfg):
  """TPO whose target is the softmax of the rewards alone: q - p without S_anchor in q."""
  return _share(rows, rows.reward) - _share(rows, jnp.sum(rows.log_probs, -1))


@group_loss("tpo_drop_equal", NoNumbers, anchor="behavior")
def tpo_drop_equal(rows: Rows, cfg):
  """TPO without the pull back to the anchor in groups of equal rewards."""
  score, anchor = jnp.sum(rows.log_probs, -1), jnp.sum(rows.anchor_log_probs, -1)
  return informative(rows) * (_share(rows, anchor + rows.reward) - _share(rows, score))
