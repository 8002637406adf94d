"""The losses: a forward pass, an estimator, and the weighted sum. Additive over micro-batches."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.config import CriticConfig, KLConfig, LossConfig
from jaxrl_llm.objective import correction, divergences, estimators
from jaxrl_llm.objective.estimators.common import masked_log_ratio
from jaxrl_llm.ops import masked
from jaxrl_llm.ops.experts import expert_load
from jaxrl_llm.ops.token_stats import token_stats
from jaxrl_llm.types import Rollout, SupervisedBatch, TokenStats, TrainBatch

# what a pruned vocabulary asks for beside the log-probs
PRUNED = frozenset({"kept_mass", "in_support"})


def row_stats(params, tokens: Int[Array, "B L"], length: Int[Array, " B"], *, model, temperature,
              stats: frozenset[str] = frozenset(), entropy_gradient: bool = False,
              banned: tuple[tuple[int, ...], Bool[Array, "B L"]] | None = None,
              completion: tuple[Int[Array, " B"], int] | None = None, **support) -> TokenStats:
  """TokenStats [B, L] of whole rows under `params`; entry 0, which nothing precedes, is 0 (False).

  Args:
    tokens: [B, L], padded behind `length`.
    length: [B], tokens in the row.
    model: see models/transformer.py.
    temperature: as the sampler's.
    stats: names of ops/token_stats.py, `values` for the value head, and `routing` for the experts
      of each token fed in (aligned with the tokens themselves, not with what they predict).
    banned: (ids, [B, L] where none of them may be the token), as `stop_rule` gives them.
    completion: (prompt length [B], tokens that may follow): statistics of these columns alone, so
      that the vocabulary is not gone through for prompts; 0 (False) elsewhere. None: all columns.
    support: top_k, top_p, min_p of ops/token_stats.py.
  """
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  segments = (positions < length[:, None]).astype(jnp.int32)
  routing = None
  if "routing" in stats:
    hidden, _, routing = model.hidden_and_routing(params, tokens, positions, segments)
  else:
    hidden, _ = model.hidden(params, tokens, positions, segments)
  head = model.head(params)
  take, put = _columns(tokens.shape[1], completion)
  # Whole rows, the last column predicting nothing: an even length is worth more than the column
  # costs.
  coming = lambda x: take(jnp.roll(x, -1, 1))
  if banned is not None:
    ids, where = banned
    support["banned"] = (jnp.isin(jnp.arange(head.shape[1]), jnp.asarray(ids)), coming(where))
  out = token_stats(take(hidden), head, coming(tokens), temperature=temperature,
                    stats=stats - {"values", "routing"}, entropy_gradient=entropy_gradient,
                    **support)
  out = jax.tree.map(put, out)
  if "values" in stats:
    out = out.replace(values=model.values(params, hidden))
  shift = lambda x: None if x is None else jnp.pad(x[:, :-1], ((0, 0), (1, 0)))
  return TokenStats(*(shift(x) for x in vars(out).values())).replace(routing=routing)


def _columns(length: int, completion: tuple[Int[Array, " B"], int] | None):
  """(whole rows -> the columns that predict a completion, those columns -> rows with 0 elsewhere).
  """
  if completion is None or completion[1] >= length:
    return lambda x: x, lambda x: x
  prompt, width = completion
  # the last column predicts nothing
  at = jnp.minimum(prompt[:, None] - 1 + jnp.arange(width), length - 1)
  take = lambda x: jnp.take_along_axis(x, at.reshape(*at.shape, *(1,) * (x.ndim - 2)), axis=1)
  put = lambda x: jax.vmap(lambda row, i: jnp.zeros(length, x.dtype).at[i].set(row))(x, at)
  return take, put


def completion_of(rollout: Rollout, cfg: LossConfig) -> tuple[Int[Array, " B"], int] | None:
  """`completion` of `row_stats`; None where the config does not bound it."""
  return None if cfg.max_new_tokens is None else (rollout.prompt_length, cfg.max_new_tokens)


def stop_rule(rollout: Rollout,
              cfg: LossConfig) -> tuple[tuple[int, ...], Bool[Array, "B L"]] | None:
  """(stop tokens, [B, L] the first `cfg.min_new_tokens` places of each completion); None where the
  rule is off.

  Places are counted as the samplers do, what an environment inserted included.

  Raises:
    ValueError: the rule is on, and `cfg.stop_ids` empty.
  """
  if not cfg.min_new_tokens:
    return None
  if not cfg.stop_ids:
    raise ValueError(
        f"LossConfig: min_new_tokens = {cfg.min_new_tokens} with stop_ids = (): which tokens does "
        "it "
        "forbid? Fix: the task's stop_ids.")
  place = jnp.arange(rollout.tokens.shape[1]) - rollout.prompt_length[:, None]
  return cfg.stop_ids, (place >= 0) & (place < cfg.min_new_tokens)


def policy_stats(params, batch: TrainBatch, *, model, cfg: LossConfig,
                 stats: frozenset[str] = frozenset()) -> TokenStats:
  """TokenStats [B, L] of the batch's tokens as `policy_loss` sees them: at its temperature, on its
  vocabulary.
  """
  rollout, banned = batch.rollout, stop_rule(batch.rollout, cfg)
  restricted = bool(cfg.rules) or banned is not None
  return row_stats(params, rollout.tokens, rollout.length, model=model, temperature=cfg.temperature,
                   stats=stats | PRUNED if restricted else stats, entropy_gradient=cfg.entropy.coef
                   != 0, banned=banned, completion=completion_of(rollout, cfg), **cfg.rules)


def policy_loss(params, batch: TrainBatch, *, model,
                cfg: LossConfig) -> tuple[Float[Array, ""], dict]:
  """sum(loss_weights correction_weights gate per_token_loss) + kl - entropy bonus + value loss, and
  metrics.

  The regularisers use weights of the same aggregation that ignore the advantages
  (`regularizer_weights`). A token outside the kept vocabulary of the current policy or the anchor
  (a stop token too early among them) is skipped by every ratio and has loss 0, and stays in the
  denominators.
  """
  rollout, mask = batch.rollout, batch.rollout.mask
  wanted = {"entropy": True, "values": cfg.critic is not None, "routing": cfg.num_experts > 0}
  extra = frozenset(name for name, asked in wanted.items() if asked)
  stats = policy_stats(params, batch, model=model, cfg=cfg, stats=extra)
  log_probs = stats.log_probs
  live = mask
  for inside in (stats.in_support, batch.in_support):
    live = live if inside is None else live & inside
  anchor = lax.stop_gradient(
      log_probs) if batch.anchor_log_probs is None else batch.anchor_log_probs
  prepared = {} if batch.estimator_weights is None else {"weights": batch.estimator_weights}
  estimator = estimators.get_estimator(cfg.estimator.name)
  out = estimator(log_probs, anchor, batch.advantages, live, cfg.estimator, **prepared)
  weights = batch.loss_weights * batch.correction_weights
  if cfg.correction.sequence_delta is not None:
    weights *= correction.sequence_mask(log_probs, anchor, batch.advantages, live, cfg.correction)
  loss = jnp.sum(weights * jnp.where(live, out.per_token_loss, 0))
  metrics = {**out.metrics, **ratio_metrics(log_probs, anchor, rollout.replace(mask=live))}
  metrics["policy/entropy"] = masked.mean(stats.entropy, mask)
  if stats.kept_mass is not None:
    metrics["vocabulary/kept_mass"] = masked.mean(stats.kept_mass, mask)
    metrics["vocabulary/out_of_set"] = masked.mean((~live).astype(jnp.float32), mask)
  if cfg.num_experts:
    fed = jnp.arange(mask.shape[1]) < rollout.length[:, None]
    metrics["moe/load"] = expert_load(stats.routing, fed, cfg.num_experts)
  regularizer = batch.loss_weights if batch.regularizer_weights is None else batch.regularizer_weights
  if cfg.kl.coef and cfg.kl.place == "loss":
    divergence = kl_terms(log_probs, batch.ref_log_probs, rollout.behavior_log_probs, live, cfg.kl)
    loss += cfg.kl.coef * jnp.sum(regularizer * divergence)
    metrics["kl/reference"] = masked.mean(lax.stop_gradient(divergence), mask)
  if cfg.entropy.coef:
    loss -= cfg.entropy.coef * jnp.sum(regularizer * masked.masked(stats.entropy, mask))
  if cfg.critic is not None:
    terms = value_terms(stats.values, batch.values, batch.returns, mask, cfg.critic)
    loss += cfg.critic.coef * jnp.sum(regularizer * terms)
    metrics["critic/loss"] = masked.mean(terms, mask)
    metrics["critic/value"] = masked.mean(stats.values, mask)
    metrics["critic/return"] = masked.mean(batch.returns, mask)
  return loss, metrics


def kl_terms(log_probs, ref_log_probs, behavior_log_probs, mask,
             cfg: KLConfig) -> Float[Array, "B L"]:
  """The divergence of each token; with `importance` times pi / behavior, whose gradient counts.

  With k3 and `importance` the expected gradient is that of KL(pi || ref), also off-policy:
  DeepSeek-V3.2, methods E22.
  """
  divergence = divergences.get_divergence(cfg.name)(log_probs, ref_log_probs, mask)
  if not cfg.importance:
    return divergence
  return divergence * jnp.exp(masked_log_ratio(log_probs, behavior_log_probs, mask))


def value_terms(values, old_values, returns, mask, cfg: CriticConfig) -> Float[Array, "B L"]:
  """max((V - R)^2, (clip(V, V_old +- clip) - R)^2) / 2, 0 where mask is False.

  Source: PPO2's value loss; methods A11.6.
  """
  values, old_values, returns = (masked.masked(x, mask) for x in (values, old_values, returns))
  error = jnp.square(values - returns)
  if cfg.clip is not None:
    near = jnp.clip(values, old_values - cfg.clip, old_values + cfg.clip)
    error = jnp.maximum(error, jnp.square(near - returns))
  return masked.masked(error / 2, mask)


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
      "ratio/square": masked.mean(jnp.exp(2 * log_ratio), mask),
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
