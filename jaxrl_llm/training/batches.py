"""From a scored rollout batch to optimizer batches."""

import jax

from jaxrl_llm.config import AdvantageConfig, AggregationConfig, CorrectionConfig
from jaxrl_llm.objective.advantages import get_advantage
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.objective.correction import correction_weights
from jaxrl_llm.types import AdvantageInputs, TrainBatch


def optimizer_batches(rollout, rewards, keep, anchor_log_probs, ref_log_probs, *, group_size: int, parts: int,
                      advantage: AdvantageConfig, aggregation: AggregationConfig, correction: CorrectionConfig):
  """Advantages over whole groups, then `parts` batches of whole groups with weights of their own.

  Args:
    rollout: B rows, groups contiguous.
    rewards, keep: [B].
    anchor_log_probs: [B, L], or None where the anchor is the current policy (parts = 1).
    ref_log_probs: [B, L] or None.

  Returns:
    (list of `parts` TrainBatch, metrics of the correction). Part k takes groups k, k + parts, ... .
  """
  inputs = AdvantageInputs(rewards, rollout.mask, rollout.tokens, rollout.group_id, keep)
  advantages = get_advantage(advantage.name)(inputs, advantage)
  # Where the anchor is the current policy there is nothing to correct against but the behavior itself: weight 1.
  anchor = rollout.behavior_log_probs if anchor_log_probs is None else anchor_log_probs
  weights, metrics = correction_weights(anchor, rollout.behavior_log_probs, rollout.mask, correction)
  whole = TrainBatch(rollout, advantages, None, anchor_log_probs, weights, ref_log_probs)
  batches = []
  for k in range(parts):
    part, part_keep = jax.tree.map(lambda x, k=k: _whole_groups(x, k, parts, group_size), (whole, keep))
    batches.append(part.replace(loss_weights=loss_weights(part.rollout.mask, part.advantages, part.rollout.group_id,
                                                          aggregation, part_keep)))
  return batches, metrics


def _whole_groups(x: jax.Array, k: int, parts: int, group_size: int) -> jax.Array:
  """Rows of every `parts`-th group: an equal share of each shard."""
  groups = x.reshape(-1, parts, group_size, *x.shape[1:])
  return groups[:, k].reshape(-1, *x.shape[1:])
