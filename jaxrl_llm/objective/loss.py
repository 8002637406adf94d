"""The losses: a forward pass, an estimator, and the weighted sum. Additive over micro-batches."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxrl_llm.config import LossConfig
from jaxrl_llm.objective import divergences, estimators
from jaxrl_llm.objective.estimators.common import masked_log_ratio
from jaxrl_llm.ops import masked
from jaxrl_llm.ops.token_stats import token_stats
from jaxrl_llm.types import Rollout, SupervisedBatch, TokenStats, TrainBatch


def row_stats(params, tokens: Int[Array, "B L"], length: Int[Array, " B"], *, model, temperature,
              stats: frozenset[str] = frozenset(), entropy_gradient: bool = False) -> TokenStats:
  """TokenStats [B, L] of whole rows under `params`; entry 0, which nothing precedes, is 0.

  Args:
    tokens: [B, L], padded behind `length`.
    length: [B], tokens in the row.
    model: see models/transformer.py.
    temperature: as the sampler's.
  """
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  segments = (positions < length[:, None]).astype(jnp.int32)
  hidden, _ = model.hidden(params, tokens, positions, segments)
  # Whole rows, the last column predicting nothing: an even length is worth more than the column costs.
  out = token_stats(hidden, model.head(params), jnp.roll(tokens, -1, 1), temperature=temperature, stats=stats,
                    entropy_gradient=entropy_gradient)
  shift = lambda x: None if x is None else jnp.pad(x[:, :-1], ((0, 0), (1, 0)))
  return TokenStats(log_probs=shift(out.log_probs), entropy=shift(out.entropy))


def policy_loss(params, batch: TrainBatch, *, model, cfg: LossConfig) -> tuple[Float[Array, ""], dict]:
  """sum(loss_weights correction_weights per_token_loss) + kl - entropy bonus, and mergeable metrics.

  The KL and entropy terms use the weights of the same aggregation; none of its modes reads the advantages.
  """
  rollout, mask = batch.rollout, batch.rollout.mask
  stats = row_stats(params, rollout.tokens, rollout.length, model=model, temperature=cfg.temperature,
                    stats=frozenset({"entropy"}), entropy_gradient=cfg.entropy.coef != 0)
  log_probs = stats.log_probs
  anchor = lax.stop_gradient(log_probs) if batch.anchor_log_probs is None else batch.anchor_log_probs
  out = estimators.get_estimator(cfg.estimator.name)(log_probs, anchor, batch.advantages, mask, cfg.estimator)
  weights = batch.loss_weights * batch.correction_weights
  loss = jnp.sum(weights * jnp.where(mask, out.per_token_loss, 0))
  metrics = {**out.metrics, **ratio_metrics(log_probs, anchor, rollout)}
  metrics["policy/entropy"] = masked.mean(stats.entropy, mask)
  if cfg.kl.coef:
    divergence = divergences.get_divergence(cfg.kl.name)(log_probs, batch.ref_log_probs, mask)
    loss += cfg.kl.coef * jnp.sum(batch.loss_weights * divergence)
    metrics["kl/reference"] = masked.mean(divergence, mask)
  if cfg.entropy.coef:
    loss -= cfg.entropy.coef * jnp.sum(batch.loss_weights * masked.masked(stats.entropy, mask))
  return loss, metrics


def ratio_metrics(log_probs, anchor_log_probs, rollout: Rollout) -> dict:
  """Unclipped statistics between current policy, anchor and behavior (methods E24).

  `kl/x_y` is the k3 estimate of KL(y || x) on the sampled tokens, which are the behavior policy's.
  """
  mask = rollout.mask
  log_ratio = lax.stop_gradient(masked_log_ratio(log_probs, anchor_log_probs, mask))
  k3 = lambda log_r: masked.mean(jnp.expm1(log_r) - log_r, mask)
  from_behavior = lambda x: lax.stop_gradient(masked_log_ratio(x, rollout.behavior_log_probs, mask))
  return {
      "log_ratio": masked.histogram(log_ratio, mask),
      "log_ratio/range": masked.extreme(log_ratio, mask),
      "ratio/mean": masked.mean(jnp.exp(log_ratio), mask),
      "kl/current_anchor": k3(log_ratio),
      "kl/anchor_behavior": k3(from_behavior(anchor_log_probs)),
      "kl/current_behavior": k3(from_behavior(log_probs)),
  }


def sft_loss(params, batch: SupervisedBatch, *, model, cfg) -> tuple[Float[Array, ""], dict]:
  """Negative log-likelihood: sum(loss_weights * -log pi). `cfg` is not read; temperature is 1."""
  del cfg
  log_probs = row_stats(params, batch.tokens, batch.length, model=model, temperature=1.0).log_probs
  counted = batch.loss_weights > 0
  loss = -jnp.sum(batch.loss_weights * masked.masked(log_probs, counted))
  return loss, {"loss/sft": masked.mean(-log_probs, counted)}
