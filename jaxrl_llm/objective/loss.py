"""The losses: a forward pass, an estimator, and a weighted sum that adds up over micro-batches."""

import dataclasses

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.config import EstimatorConfig, LossConfig
from jaxrl_llm.objective import anchor as interpolation
from jaxrl_llm.objective import correction, estimators, terms
from jaxrl_llm.objective.estimators.common import masked_log_ratio
from jaxrl_llm.objective.row_stats import Distribution, fed_tokens, predicted_ahead, row_stats
from jaxrl_llm.objective.terms import kl_terms, value_terms
from jaxrl_llm.ops import masked
from jaxrl_llm.ops.experts import expert_load, replaced_experts
from jaxrl_llm.types import Mean, Rollout, SupervisedBatch, TokenStats, TrainBatch

__all__ = ["completion_of", "kl_terms", "policy_loss", "policy_stats", "ratio_metrics",
           "regularizer_weights", "sft_loss", "stop_rule", "value_terms"]

# Statistics of a pruned vocabulary, besides the log-probs.
PRUNED = frozenset({"kept_mass", "in_support"})


def completion_of(rollout: Rollout, cfg: LossConfig) -> tuple[Int[Array, " B"], int] | None:
  """Returns `completion` of `row_stats`; None where the config does not bound it."""
  return None if cfg.max_new_tokens is None else (rollout.prompt_length, cfg.max_new_tokens)


def stop_rule(rollout: Rollout,
              cfg: LossConfig) -> tuple[tuple[int, ...], Bool[Array, "B L"]] | None:
  """Returns the stop tokens, and where they are banned: [B, L] bool; None where the rule is off.

  They are banned in the first `cfg.min_new_tokens` places of each completion. Places are counted as
  the samplers do: tokens that an environment inserted count, too.

  Raises:
    ValueError: the rule is on, and `cfg.stop_ids` is empty.
  """
  if not cfg.min_new_tokens:
    return None
  if not cfg.stop_ids:
    raise ValueError(
        f"LossConfig: min_new_tokens = {cfg.min_new_tokens} with stop_ids = (): which tokens does "
        "it forbid? Fix: the task's stop_ids.")
  place = jnp.arange(rollout.tokens.shape[1]) - rollout.prompt_length[:, None]
  return cfg.stop_ids, (place >= 0) & (place < cfg.min_new_tokens)


def policy_stats(params, batch: TrainBatch, *, model, cfg: LossConfig,
                 stats: frozenset[str] = frozenset()) -> TokenStats:
  """Returns the TokenStats [B, L] of the batch under the temperature and vocabulary of `cfg`."""
  rollout, ban = batch.rollout, stop_rule(batch.rollout, cfg)
  is_restricted = bool(cfg.rules) or ban is not None
  active = terms.active(cfg)
  if any(term.entry.detached for term in active):
    model = dataclasses.replace(model, detached=True)
  return row_stats(params, rollout.tokens, rollout.length, model=model,
                   distribution=Distribution(cfg.temperature, cfg.rules, ban),
                   stats=stats | PRUNED if is_restricted else stats,
                   entropy_gradient=any("entropy" in term.entry.stats for term in active),
                   completion=completion_of(rollout, cfg), bins=batch.bins,
                   replayed=rollout.routing)


def policy_loss(params, batch: TrainBatch, *, model,
                cfg: LossConfig) -> tuple[Float[Array, ""], dict]:
  """Returns the loss of an optimizer batch or of a micro-batch, and its metrics.

    loss = sum(loss_weights correction_weights gate per_token_loss) + terms (objective/terms.py)

  With an interpolated anchor the correction weights follow from it, and are found here.

  A token outside the vocabulary of the current policy or of the anchor (also a stop token that
  comes too early) enters no ratio and has loss 0, but stays in the denominators. A row without
  weight, which was dropped, enters no metric.
  """
  batch = _mask_unweighted_rows(batch)
  rollout, mask = batch.rollout, batch.rollout.mask
  extra = {"entropy"}.union(*(term.entry.stats for term in terms.active(cfg)))
  extra |= {"routing"} if cfg.num_experts else set()
  stats = policy_stats(params, batch, model=model, cfg=cfg, stats=frozenset(extra))
  log_probs, anchor = stats.log_probs, anchor_of(batch, stats.log_probs)
  live = mask
  for support in (stats.in_support, batch.in_support):
    live = live if support is None else live & support
  statistics = {} if batch.estimator_weights is None else {"weights": batch.estimator_weights}
  estimator = estimators.get_estimator(cfg.estimator.name)
  out = estimator(log_probs, anchor, batch.advantages, live, cfg.estimator, **statistics,
                  **estimator_columns(batch, cfg.estimator, stats.entropy))
  corrections, correction_metrics = batch.correction_weights, {}
  if is_interpolated(batch):
    corrections, correction_metrics = correction.correction_weights(
        anchor, rollout.behavior_log_probs, live, cfg.correction)
  weights = batch.loss_weights * corrections
  if cfg.correction.sequence_delta is not None:
    weights *= correction.sequence_mask(log_probs, anchor, batch.advantages, live, cfg.correction)
  loss = jnp.sum(weights * jnp.where(live, out.per_token_loss, 0))
  metrics = {**out.metrics, **correction_metrics,
             **ratio_metrics(log_probs, anchor, rollout.replace(mask=live)),
             **_policy_metrics(stats, batch, live, cfg)}
  inputs = terms.TermInputs(stats, batch, live, terms.surrogate_of(cfg))
  return terms.add(loss, metrics, inputs, cfg, {
      terms.POLICY: weights, terms.REGULARIZER: regularizer_weights(batch)})


def is_interpolated(batch: TrainBatch) -> bool:
  """Returns whether the anchor lies between sampler and current policy; see objective/anchor.py."""
  return interpolation.SHARE in (batch.columns or {})


def anchor_of(batch: TrainBatch, log_probs: Float[Array, "B L"]) -> Float[Array, "B L"]:
  """Returns the anchor's log-probs [B, L], a constant; `log_probs` are the current policy's."""
  if batch.anchor_log_probs is not None:
    return batch.anchor_log_probs
  if is_interpolated(batch):
    return interpolation.interpolated_anchor(log_probs, batch.rollout.behavior_log_probs,
                                             batch.columns[interpolation.SHARE])
  return lax.stop_gradient(log_probs)


def estimator_columns(batch: TrainBatch, cfg: EstimatorConfig,
                      entropy: Float[Array, "B L"] | None = None) -> dict[str, Array]:
  """Returns the columns of the batch that the estimator reads, by name.

  Args:
    entropy: of the current policy, in the place of the anchor's where no pass found that.
  """
  rollout = batch.rollout
  turn_id = rollout.mask.astype(jnp.int32) if rollout.turn_id is None else rollout.turn_id
  columns = {"group_id": rollout.group_id, "row_id": rollout.row_id, "turn_id": turn_id,
             "entropy": None if entropy is None else lax.stop_gradient(entropy)}
  columns |= batch.columns or {}
  return {name: columns.get(name) for name in sorted(estimators.required(cfg))}


def regularizer_weights(batch: TrainBatch) -> Float[Array, "B L"]:
  """Returns weights [B, L] of the loss's aggregation that ignore the advantages; 0 in dropped rows.
  """
  return batch.loss_weights if batch.regularizer_weights is None else batch.regularizer_weights


def _mask_unweighted_rows(batch: TrainBatch) -> TrainBatch:
  """Returns the batch with an empty mask in rows without any weight."""
  has_weight = jnp.any(regularizer_weights(batch) != 0, axis=1, keepdims=True)
  return batch.replace(rollout=batch.rollout.replace(mask=batch.rollout.mask & has_weight))


def _policy_metrics(stats: TokenStats, batch: TrainBatch, live: Bool[Array, "B L"],
                    cfg: LossConfig) -> dict:
  """Returns the metrics of the policy itself: entropy, pruned vocabulary, load of the experts."""
  mask = batch.rollout.mask
  metrics = {"policy/entropy": masked.mean(stats.entropy, mask)}
  if stats.kept_mass is not None:
    metrics["vocabulary/kept_mass"] = masked.mean(stats.kept_mass, mask)
    metrics["vocabulary/out_of_set"] = masked.mean((~live).astype(jnp.float32), mask)
  if cfg.num_experts:
    fed = fed_tokens(batch.rollout.length, mask.shape[1], batch.bins)
    metrics["moe/load"] = expert_load(stats.routing, fed, cfg.num_experts)
    if stats.likely_routing is not None:
      metrics["moe/replaced"] = replaced_experts(stats.routing, stats.likely_routing, fed)
  return metrics


def ratio_metrics(log_probs, anchor_log_probs, rollout: Rollout) -> dict:
  """Returns unclipped statistics of the ratios between current policy, anchor and behavior.

  `kl/x_y` is the k3 estimate of KL(y || x) on the sampled tokens, which are the behavior policy's.

  Source: objective/mismatch.md, "Metrics of the ratio".
  """
  mask, behavior = rollout.mask, rollout.behavior_log_probs
  log_ratio = lax.stop_gradient(masked_log_ratio(log_probs, anchor_log_probs, mask))
  anchor_behavior = lax.stop_gradient(masked_log_ratio(anchor_log_probs, behavior, mask))
  current_behavior = lax.stop_gradient(masked_log_ratio(log_probs, behavior, mask))
  return {
      "log_ratio": masked.histogram(log_ratio, mask),
      "log_ratio/range": masked.extreme(log_ratio, mask),
      "ratio/mean": masked.mean(jnp.exp(log_ratio), mask),
      "ratio/square": masked.mean(jnp.exp(2 * log_ratio), mask),
      "ratio/ess": masked.effective_share(jnp.sum(log_ratio, -1), jnp.any(mask, -1)),
      "kl/current_anchor": _mean_k3(log_ratio, mask),
      "kl/anchor_behavior": _mean_k3(anchor_behavior, mask),
      "kl/current_behavior": _mean_k3(current_behavior, mask),
  }


def _mean_k3(log_ratio: Float[Array, "B L"], mask: Bool[Array, "B L"]) -> Mean:
  """Returns the mean of exp(l) - 1 - l."""
  return masked.mean(jnp.expm1(log_ratio) - log_ratio, mask)


def sft_loss(params, batch: SupervisedBatch, *, model, cfg) -> tuple[Float[Array, ""], dict]:
  """Returns the negative log-likelihood sum(loss_weights * -log pi), and its mean per token.

  The temperature is 1. All losses share `cfg`; only `mtp_coef` is read here: with it, the negative
  log-likelihood of the module that predicts two tokens ahead is added, times that. None: there is
  no such module.
  """
  mtp_coef = None if cfg is None else cfg.mtp_coef
  stats = row_stats(params, batch.tokens, batch.length, model=model,
                    stats=frozenset() if mtp_coef is None else frozenset({"mtp_log_probs"}))
  target_mask = batch.loss_weights > 0
  loss = -jnp.sum(batch.loss_weights * masked.masked(stats.log_probs, target_mask))
  metrics = {"loss/sft": masked.mean(-stats.log_probs, target_mask)}
  if mtp_coef is not None:
    target_mask = predicted_ahead(target_mask)
    loss -= mtp_coef * jnp.sum(batch.loss_weights * masked.masked(stats.mtp_log_probs, target_mask))
    metrics["loss/mtp"] = masked.mean(-stats.mtp_log_probs, target_mask)
  return loss, metrics
