"""One batch of frozen rollouts through every estimator: what each clips, weighs and would do to the
parameters.

All estimators see the same tokens, advantages and weights; only the ratio differs. The gradient of
a loss that depends on the parameters through log-probs alone is a product with the coefficients
dloss / dlog pi, so the network is compiled once, not once per estimator.

Where the run prunes the vocabulary or forbids early stop tokens, tokens outside the current
policy's set have neither ratio nor gradient, as in `policy_loss`; their weights stay in the
denominators. `policy_loss` skips those outside the anchor's set, too: which these are is not saved
with the rollouts, so that here they take part.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxrl_llm.analysis.frozen import Frozen
from jaxrl_llm.config import Config, EstimatorConfig, StepConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.estimators.common import masked_log_ratio
from jaxrl_llm.objective.loss import policy_stats
from jaxrl_llm.ops import prefix
from jaxrl_llm.training.batches import weighed_batch, with_weights
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.train_step import gradients
from jaxrl_llm.types import TokenStats, TrainBatch

BUCKETS = 12  # of token positions, log-spaced


@dataclasses.dataclass(frozen=True)
class Replayed:
  """One estimator on the batch.

  Attributes:
    name: of the estimator.
    anchor: `recomputed` or `behavior`.
    clip: shares of the policy tokens inside the vocabulary, by the names of `clip_counts`.
    effective_share: effective sample size of the token weights |coefficient / advantage|, over
      their number.
    norm: of the gradient with respect to the parameters.
    gradient: [P] f32.
    dropped_by_position: share of tokens without gradient, per bucket.
  """

  name: str
  anchor: str
  clip: dict[str, float]
  effective_share: float
  norm: float
  gradient: np.ndarray
  dropped_by_position: np.ndarray


@dataclasses.dataclass(frozen=True)
class Replay:
  """All estimators, and the drift that they met.

  Attributes:
    estimators: one entry each.
    cosine: [E, E] between gradients; NaN where one is zero.
    position: [K] geometric middle of each bucket, policy tokens from 1.
    count: [K] tokens inside the vocabulary.
    mean, std: [K] of the cumulative log-ratio current / behavior, nats.
  """

  estimators: list[Replayed]
  cosine: np.ndarray
  position: np.ndarray
  count: np.ndarray
  mean: np.ndarray
  std: np.ndarray


def replay(frozen: Frozen, params, scores: Scores, *, model, cfg: Config, micro_batches: int,
           stop_ids: tuple[int, ...] = ()) -> Replay:
  """Every registered estimator on one optimizer batch made of all rows.

  Args:
    params: the current policy.
    scores: what the run's advantage needs; its anchor is replaced by the frozen ones.
    cfg: resolved; its advantage, aggregation and temperature are used, its estimator and correction
      are not.
    micro_batches: parts of the rows that go through the network at a time.
    stop_ids: the task's, which `rollout.min_new_tokens` reads.
  """
  batch = _batch(frozen, scores, cfg)
  step = StepConfig(
      dataclasses.replace(cfg.loss, estimator=EstimatorConfig("reinforce"), stop_ids=stop_ids),
      micro_batches)
  stats = jax.jit(functools.partial(policy_stats, model=model, cfg=step.loss))(params, batch)
  gradient = jax.jit(
      lambda p, b: ravel_pytree(gradients(p, b, loss=_linear, model=model, cfg=step)[1])[0])
  edges, bucket = _buckets(batch.rollout.mask)
  batch = _inside(batch, stats)
  log_probs, mask = stats.log_probs, np.asarray(batch.rollout.mask)
  entries = []
  for name in estimators.names():
    spec = estimators.spec(name)
    anchor = batch.rollout.behavior_log_probs if spec.anchor == "behavior" else jnp.asarray(
        frozen.anchor_log_probs)
    coefficient, clip = _coefficients(name, log_probs, anchor, batch)
    flat = np.asarray(gradient(params, batch.replace(loss_weights=coefficient)))
    counted = mask & (np.asarray(batch.advantages * batch.loss_weights) != 0)
    dropped = (np.asarray(coefficient) == 0) & counted
    entries.append(
        Replayed(name, spec.anchor, clip, _effective_share(coefficient, batch, counted),
                 float(np.linalg.norm(flat)), flat, _bucket_mean(dropped, bucket, counted)))
  cumulative = np.asarray(
      prefix.cumulative_log_ratio(
          masked_log_ratio(log_probs, batch.rollout.behavior_log_probs, batch.rollout.mask),
          batch.rollout.mask))
  mean = _bucket_mean(cumulative, bucket, mask)
  std = np.sqrt(np.maximum(_bucket_mean(np.square(cumulative), bucket, mask) - np.square(mean), 0))
  return Replay(entries, cosines([e.gradient for e in entries]),
                np.sqrt(edges[:-1] * np.maximum(edges[1:] - 1, 1)),
                np.bincount(bucket[mask], minlength=len(edges) - 1), mean, std)


def _batch(frozen: Frozen, scores: Scores, cfg: Config) -> TrainBatch:
  plain = dataclasses.replace(cfg.batch, parts=1, correction=type(cfg.correction)())
  keep = jnp.asarray(frozen.keep)
  scores = scores.replace(anchor_log_probs=jnp.asarray(frozen.anchor_log_probs))
  batch, _ = weighed_batch(frozen.rollout, jnp.asarray(frozen.rewards), keep, scores, cfg=plain)
  return with_weights(batch, keep, plain)


def _inside(batch: TrainBatch, stats: TokenStats) -> TrainBatch:
  """The batch without the tokens outside the current policy's set; advantages and weights as they
  are.
  """
  if stats.in_support is None:
    return batch
  return batch.replace(rollout=batch.rollout.replace(mask=batch.rollout.mask & stats.in_support))


def _linear(params, batch: TrainBatch, *, model, cfg):
  """sum(coefficient log pi); the coefficients, which are minus those of methods E1, lie in
  `loss_weights`.
  """
  return jnp.sum(batch.loss_weights *
                 policy_stats(params, batch, model=model, cfg=cfg).log_probs), {}


def _coefficients(name: str, log_probs, anchor, batch: TrainBatch):
  """(d loss / d log pi [B, L], clip shares)."""
  mask = batch.rollout.mask

  def loss(log_probs):
    out = estimators.get_estimator(name)(log_probs, anchor, batch.advantages, mask,
                                         EstimatorConfig(name))
    return jnp.sum(batch.loss_weights * jnp.where(mask, out.per_token_loss, 0)), out.metrics

  coefficient, metrics = jax.jit(jax.grad(loss, has_aux=True))(log_probs)
  clip = {
      key.removeprefix("clip/"): float(m.total / jnp.maximum(m.count, 1))
      for key, m in metrics.items()
      if key.startswith("clip/")
  }
  return coefficient, clip


def _effective_share(coefficient, batch: TrainBatch, counted: np.ndarray) -> float:
  """(sum w)^2 / (n sum w^2) of w = |coefficient / (weight advantage)| over the tokens that carry an
  advantage.
  """
  weight = np.abs(
      np.asarray(coefficient)[counted] / np.asarray(batch.advantages * batch.loss_weights)[counted])
  squares = np.sum(np.square(weight, dtype=np.float64))
  return float(np.sum(weight, dtype=np.float64) ** 2 / (len(weight) * squares)) if squares else 0.0


def cosines(gradients_: list[np.ndarray]) -> np.ndarray:
  """[E, E] cosines; NaN in the row and column of a zero gradient."""
  stacked = np.stack(gradients_).astype(np.float64)
  with np.errstate(invalid="ignore", divide="ignore"):
    unit = stacked / np.linalg.norm(stacked, axis=1, keepdims=True)
    return unit @ unit.T


def _buckets(mask) -> tuple[np.ndarray, np.ndarray]:
  """(edges [K + 1] of log-spaced token positions from 1, bucket [B, L] of each token)."""
  position = np.asarray(prefix.token_index(mask))
  longest = max(1, int(position.max()))
  edges = np.arange(1, longest + 2)
  if longest > BUCKETS:
    edges = np.unique(np.round(np.geomspace(1, longest + 1, BUCKETS + 1)).astype(int))
  return edges.astype(float), np.clip(
      np.searchsorted(edges, position, side="right") - 1, 0,
      len(edges) - 2)


def _bucket_mean(values: np.ndarray, bucket: np.ndarray, where: np.ndarray) -> np.ndarray:
  """[K] means; NaN for an empty bucket."""
  size = int(bucket.max()) + 1
  count = np.bincount(bucket[where], minlength=size).astype(float)
  total = np.bincount(bucket[where], weights=values[where].astype(np.float64), minlength=size)
  return np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
