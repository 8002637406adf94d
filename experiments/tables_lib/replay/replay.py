"""Replays one batch of frozen rollouts through every estimator.

The result says what each estimator clips, how it weights tokens and which gradient it gives. All
estimators see the same tokens, advantages and weights; only the ratio differs. The losses depend on
the parameters through log-probs only, so a gradient is a product with dloss / dlog pi, and the
network is compiled once instead of once per estimator.

Estimators that read the entropy get the current policy's, since the anchor's is not saved.

The run may prune the vocabulary or forbid early stop tokens. Then tokens outside the current
policy's vocabulary have neither ratio nor gradient, as in `policy_loss`; their weights stay in the
denominators. `policy_loss` also skips tokens outside the anchor's vocabulary. Saved rollouts do not
tell which these are, so here they take part.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxrl_llm.config import BatchConfig, EstimatorConfig, StepConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.estimators.common import masked_log_ratio
from jaxrl_llm.objective.loss import estimator_columns, policy_stats
from jaxrl_llm.ops import prefix
from jaxrl_llm.training.batches import weighed_batch, with_weights
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.train_step import gradients
from jaxrl_llm.types import Rollout, TokenStats, TrainBatch

BUCKETS = 12  # of token positions, log-spaced; at most


@dataclasses.dataclass(frozen=True)
class Frozen:
  """The rows of one iteration; experiments/tables_lib/replay/frozen.py reads them.

  Attributes:
    rollout: B rows, groups contiguous.
    rewards: [B] f32, as trained on.
    keep: [B] bool.
    anchor_log_probs: [B, L] f32; the behavior's if the run recorded no anchor.
  """

  rollout: Rollout
  rewards: np.ndarray
  keep: np.ndarray
  anchor_log_probs: np.ndarray


@dataclasses.dataclass(frozen=True)
class Replayed:
  """One estimator on the batch.

  Attributes:
    name: name of the estimator.
    anchor: `recomputed` or `behavior`.
    clip: shares of the policy tokens inside the vocabulary, by the estimator's own count: "high"
      (above the window), "low" (below it), "dual" (beyond the dual clip) and "dropped".
    dropped: share of tokens without gradient; as all below, of the tokens with an advantage, since
      others have no gradient under any estimator. NaN without such tokens.
    effective_share: effective sample size of the token weights |coefficient / advantage|, divided
      by their number.
    norm: norm of the gradient with respect to the parameters.
    gradient: [P] f32, over the trained parameters.
    dropped_by_position: [K], share of tokens without gradient in each bucket of positions.
  """

  name: str
  anchor: str
  clip: dict[str, float]
  dropped: float
  effective_share: float
  norm: float
  gradient: np.ndarray
  dropped_by_position: np.ndarray


@dataclasses.dataclass(frozen=True)
class Replay:
  """All estimators, and the drift between the sampling and the current policy.

  Attributes:
    estimators: one entry each.
    cosine: [E, E], between gradients; NaN where one is zero.
    advantaged: share of the policy tokens inside the vocabulary that have an advantage.
    position: [K], geometric middle of each bucket; the first policy token has position 1.
    count: [K], tokens inside the vocabulary.
    rows, leaving: [K], rows with a token in the bucket, and the rows among them that end in it.
    mean, std: [K], of the cumulative log-ratio of current and behavior policy, nats.
  """

  estimators: list[Replayed]
  cosine: np.ndarray
  advantaged: float
  position: np.ndarray
  count: np.ndarray
  rows: np.ndarray
  leaving: np.ndarray
  mean: np.ndarray
  std: np.ndarray


def replay(frozen: Frozen, params, scores: Scores, *, model, cfg: BatchConfig,
           step: StepConfig) -> Replay:
  """Puts all rows, as one optimizer batch, through every registered estimator.

  Args:
    frozen: the rows.
    params: the current policy.
    scores: statistics that the run's advantage needs; the anchor is taken from `frozen`.
    model: model of the run.
    cfg: of the run; advantage and aggregation are used, correction is not.
    step: of the run, with the task's `stop_ids`; its estimator is not used. The rows go through the
      network in `micro_batches` parts.
  """
  batch = _batch(frozen, scores, cfg)
  loss = dataclasses.replace(step.loss, estimator=EstimatorConfig("reinforce"))
  stats = jax.jit(functools.partial(policy_stats, model=model, cfg=loss,
                                    stats=frozenset({"entropy"})))(params, batch)
  batch = batch.replace(columns={"entropy": stats.entropy,
                                 "recomputed_log_probs": jnp.asarray(frozen.anchor_log_probs)})
  gradient = _gradient_function(model, StepConfig(loss, step.micro_batches))
  edges, bucket = _buckets(batch.rollout.mask)
  rows, leaving = _rows(bucket, np.asarray(batch.rollout.mask))
  batch = _inside(batch, stats)
  mask = np.asarray(batch.rollout.mask)
  advantaged_tokens = mask & (np.asarray(batch.advantages * batch.loss_weights) != 0)
  anchors = {"behavior": batch.rollout.behavior_log_probs,
             "recomputed": jnp.asarray(frozen.anchor_log_probs)}
  entries = []
  for name in estimators.names():
    anchor = estimators.spec(name).anchor
    coefficient, clip = _coefficients(name, stats.log_probs, anchors[anchor], batch)
    flat = np.asarray(gradient(params, batch.replace(loss_weights=coefficient)))
    no_gradient = (np.asarray(coefficient) == 0) & advantaged_tokens
    share = _effective_share(coefficient, batch, advantaged_tokens)
    entries.append(
        Replayed(name, anchor, clip, _share(no_gradient, advantaged_tokens), share,
                 float(np.linalg.norm(flat)),
                 flat, _bucket_mean(no_gradient, bucket, advantaged_tokens)))
  mean, std = _drift(stats.log_probs, batch.rollout, bucket)
  return Replay(
      estimators=entries,
      cosine=cosines([entry.gradient for entry in entries]),
      advantaged=_share(advantaged_tokens, mask),
      position=np.sqrt(edges[:-1] * np.maximum(edges[1:] - 1, 1)),
      count=np.bincount(bucket[mask], minlength=len(edges) - 1),
      rows=rows,
      leaving=leaving,
      mean=mean,
      std=std,
  )


def _batch(frozen: Frozen, scores: Scores, cfg: BatchConfig) -> TrainBatch:
  """Returns the rows as one optimizer batch, with the run's weights and without correction."""
  plain = dataclasses.replace(cfg, parts=1, correction=type(cfg.correction)())
  keep = jnp.asarray(frozen.keep)
  scores = scores.replace(anchor_log_probs=jnp.asarray(frozen.anchor_log_probs))
  batch, _ = weighed_batch(frozen.rollout, jnp.asarray(frozen.rewards), keep, scores, cfg=plain)
  return with_weights(batch, keep, plain)


def _inside(batch: TrainBatch, stats: TokenStats) -> TrainBatch:
  """Masks the tokens outside the current policy's vocabulary; weights stay as they are."""
  if stats.in_support is None:
    return batch
  return batch.replace(rollout=batch.rollout.replace(mask=batch.rollout.mask & stats.in_support))


def _gradient_function(model, cfg: StepConfig):
  """Returns f(params, batch) -> gradient [P] of sum(loss_weights * log pi)."""

  def gradient(params, batch: TrainBatch):
    _, tree = gradients(params, batch, loss=_linear, model=model, cfg=cfg)
    return ravel_pytree(tree)[0]

  return jax.jit(gradient)


def _linear(params, batch: TrainBatch, *, model, cfg):
  """Returns the loss sum(loss_weights * log pi), where `loss_weights` holds dloss / dlog pi."""
  log_probs = policy_stats(params, batch, model=model, cfg=cfg).log_probs
  return jnp.sum(batch.loss_weights * log_probs), {}


def _coefficients(name: str, log_probs, anchor, batch: TrainBatch):
  """Returns (dloss / dlog pi [B, L], clip shares) of an estimator with its default numbers."""
  mask, call, cfg = batch.rollout.mask, estimators.get_estimator(name), EstimatorConfig(name)
  columns = estimators.stand_ins(cfg, anchor, mask)  # for a reference that no KL term scored
  columns |= {key: x for key, x in estimator_columns(batch, cfg).items() if x is not None}

  def loss(log_probs):
    out = call(log_probs, anchor, batch.advantages, mask, cfg, **columns)
    return jnp.sum(batch.loss_weights * jnp.where(mask, out.per_token_loss, 0)), out.metrics

  coefficient, metrics = jax.jit(jax.grad(loss, has_aux=True))(log_probs)
  clip = {
      key.removeprefix("clip/"): float(m.total / jnp.maximum(m.count, 1))
      for key, m in metrics.items()
      if key.startswith("clip/")
  }
  return coefficient, clip


def _effective_share(coefficient, batch: TrainBatch, advantaged_tokens: np.ndarray) -> float:
  """Returns (sum w)^2 / (n sum w^2) over the n `advantaged_tokens` tokens.

    w = |coefficient / (loss_weight * advantage)|
  """
  plain = np.asarray(batch.advantages * batch.loss_weights)[advantaged_tokens]
  weight = np.abs(np.asarray(coefficient)[advantaged_tokens] / plain)
  squares = np.sum(np.square(weight, dtype=np.float64))
  return float(np.sum(weight, dtype=np.float64)**2 / (len(weight) * squares)) if squares else 0.0


def _drift(log_probs, rollout: Rollout, bucket: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns (mean, std) of the cumulative log-ratio of current and behavior policy, per bucket."""
  log_ratio = masked_log_ratio(log_probs, rollout.behavior_log_probs, rollout.mask)
  cumulative = np.asarray(prefix.cumulative_log_ratio(log_ratio, rollout.mask))
  mask = np.asarray(rollout.mask)
  mean = _bucket_mean(cumulative, bucket, mask)
  variance = _bucket_mean(np.square(cumulative), bucket, mask) - np.square(mean)
  return mean, np.sqrt(np.maximum(variance, 0))


def cosines(gradients_: list[np.ndarray]) -> np.ndarray:
  """Returns the cosines between gradients, [E, E]; NaN in the row and column of a zero gradient."""
  rows = np.stack(gradients_).astype(np.float64)
  with np.errstate(invalid="ignore", divide="ignore"):
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit @ unit.T


def _buckets(mask) -> tuple[np.ndarray, np.ndarray]:
  """Returns (edges [K + 1] of log-spaced token positions from 1, bucket [B, L] of each token)."""
  position = np.asarray(prefix.token_index(mask))
  longest = max(1, int(position.max()))
  edges = np.arange(1, longest + 2)
  if longest > BUCKETS:
    edges = np.unique(np.round(np.geomspace(1, longest + 1, BUCKETS + 1)).astype(int))
  bucket = np.searchsorted(edges, position, side="right") - 1
  return edges.astype(float), np.clip(bucket, 0, len(edges) - 2)


def _rows(bucket: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns (rows with a token in each bucket, rows whose last token is in it), both [K]."""
  in_bucket = np.arange(int(bucket.max()) + 1)[:, None, None] == np.where(mask, bucket, -1)
  last = np.where(mask, bucket, -1).max(1)
  return in_bucket.any(-1).sum(-1), np.bincount(last[last >= 0], minlength=len(in_bucket))


def _share(subset: np.ndarray, population: np.ndarray) -> float:
  return float(subset[population].mean()) if population.any() else float("nan")


def _bucket_mean(values: np.ndarray, bucket: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Returns the mean of each bucket over the tokens of `mask`, [K]; NaN for an empty bucket."""
  size = int(bucket.max()) + 1
  count = np.bincount(bucket[mask], minlength=size).astype(float)
  total = np.bincount(bucket[mask], weights=values[mask].astype(np.float64), minlength=size)
  return np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
