"""From a scored rollout batch to optimizer batches."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_llm.config import BatchConfig
from jaxrl_llm.objective import advantages as advantage_table
from jaxrl_llm.objective import aggregation
from jaxrl_llm.objective.advantages import get_advantage
from jaxrl_llm.objective.anchor import SHARE, share_of_policy
from jaxrl_llm.objective.correction import correction_weights
from jaxrl_llm.objective.divergences import get_divergence
from jaxrl_llm.objective.mismatch import mismatch_metrics
from jaxrl_llm.ops import masked
from jaxrl_llm.training.columns import REFERENCE_COLUMN
from jaxrl_llm.training.meter import valid_tokens
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import AdvantageInputs, TrainBatch


def weighed_batch(rollout, rewards, keep, scores: Scores, *,
                  cfg: BatchConfig) -> tuple[TrainBatch, dict]:
  """Computes correction weights and advantages of the full rollout batch, over complete groups.

  Args:
    rollout: B rows, groups contiguous.
    rewards: [B] f32.
    keep: [B] bool.
    scores: scores of the rollout.

  Returns:
    (TrainBatch whose loss_weights are still None, metrics of correction, mismatch, KL and
    advantage).
  """
  mask, anchor = rollout.mask, scores.anchor_log_probs
  if anchor is None:
    # The anchor is the current policy. Against the behavior itself every correction weight is 1.
    anchor = rollout.behavior_log_probs
  live = mask & keep[:, None]
  live = live if scores.in_support is None else live & scores.in_support
  weights, metrics = correction_weights(anchor, rollout.behavior_log_probs, live, cfg.correction)
  if scores.metered is not None:
    metrics |= mismatch_metrics(scores.metered.log_probs, rollout.behavior_log_probs,
                                valid_tokens(scores.metered, rollout))
  token_rewards = None
  if cfg.kl.coef and cfg.kl.place == "reward":
    divergence = lax.stop_gradient(get_divergence(cfg.kl.name)(anchor, scores.ref_log_probs, mask))
    token_rewards = -cfg.kl.coef * divergence
    metrics = {**metrics, "kl/reference": masked.mean(divergence, live)}
  denominator = anchor if scores.current_log_probs is None else scores.current_log_probs
  inputs = AdvantageInputs(
      rewards, mask, rollout.tokens, rollout.group_id, keep, token_rewards=token_rewards,
      anchor_log_probs=denominator, ref_log_probs=scores.ref_log_probs,
      sum_pi_squared=scores.sum_pi_squared, values=scores.values, correction_weights=weights,
      turn_id=mask.astype(jnp.int32) if rollout.turn_id is None else rollout.turn_id,
      entropy=scores.entropy, columns=scores.columns, reward_parts=scores.reward_parts)
  metrics |= advantage_table.metrics(inputs, cfg.advantage)
  advantages = get_advantage(cfg.advantage.name)(inputs, cfg.advantage)
  metrics |= {"advantage/mean": masked.mean(advantages, live),
              "advantage/square": masked.mean(jnp.square(advantages), live)}
  returns = None if scores.values is None else advantage_table.value_targets(inputs, cfg.advantage)
  return TrainBatch(rollout, advantages, None, scores.anchor_log_probs, weights,
                    scores.ref_log_probs, values=scores.values, returns=returns,
                    in_support=scores.in_support, columns=_columns(scores, rollout, cfg)), metrics


def _columns(scores: Scores, rollout, cfg: BatchConfig) -> dict | None:
  """Returns the columns that loss terms read and that a pass found, and what an interpolated anchor
  needs; None if there is none.

  Policies are counted by phases of `cfg.parts` updates: this phase makes the one after the current.
  """
  columns = {REFERENCE_COLUMN: scores.ref_log_probs} | (scores.columns or {})
  term_columns = {name: columns[name] for name in cfg.term_columns if name in columns}
  if scores.step is not None:
    term_columns[SHARE] = share_of_policy(rollout.policy_step // cfg.parts,
                                          scores.step // cfg.parts + 1)
  return term_columns or None


def with_weights(batch: TrainBatch, keep, cfg: BatchConfig) -> TrainBatch:
  """Returns `batch` as one optimizer batch, with the weights of its aggregation over all its rows.
  """
  mask = batch.rollout.mask
  weights = aggregation.loss_weights(mask, batch.advantages, batch.rollout.group_id,
                                     cfg.aggregation, keep)
  plain = None
  if cfg.aggregation.name == "balanced":
    plain = aggregation.regularizer_weights(mask, cfg.aggregation, keep)
  return batch.replace(loss_weights=weights, regularizer_weights=plain)


def optimizer_batches(rollout, rewards, keep, scores: Scores, *,
                      cfg: BatchConfig) -> tuple[list[TrainBatch], dict]:
  """Divides a rollout into `cfg.parts` optimizer batches of complete groups.

  Advantages are computed over the rollout, weights over each optimizer batch. Arguments and metrics
  are as in `weighed_batch`.

  Returns:
    (list of TrainBatch, metrics). Batch k takes groups k, k + parts, ... .
  """
  weighed_rollout, metrics = weighed_batch(rollout, rewards, keep, scores, cfg=cfg)
  batches = []
  for k in range(cfg.parts):
    take = functools.partial(_full_groups, k=k, cfg=cfg)
    part, part_keep = jax.tree.map(take, (weighed_rollout, keep))
    if part.columns is not None:
      part = part.replace(at_anchor=jnp.full_like(part_keep, k == 0))
    batches.append(with_weights(part, part_keep, cfg))
  return batches, metrics


def _full_groups(x: jax.Array, k: int, cfg: BatchConfig) -> jax.Array:
  """Returns the rows of groups k, k + parts, ...: an equal share of each shard."""
  groups = x.reshape(-1, cfg.parts, cfg.group_size, *x.shape[1:])
  return groups[:, k].reshape(-1, *x.shape[1:])
