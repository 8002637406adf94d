"""The step by effective sample size and the gate by entropy, as update transforms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_batch
from tiny_batch import close, scaled

from jaxrl_llm.config import EstimatorConfig, LossConfig, OptimizerConfig, StepConfig
from jaxrl_llm.config import TransformConfig as Transform
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.training.columns import RECOMPUTED_COLUMN
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.train_step import init_state, train_step
from jaxrl_llm.training.whole_batch import stats_before

LOSS = LossConfig(EstimatorConfig("ppo", clip_low=0.9, clip_high=9.0))
DROPPED = 5  # a completion of the batch whose tokens have no weight


@functools.cache
def step_of(transform: Transform | None, optimizer: str = "sgd", micro_batches: int = 1):
  tx = make_optimizer(OptimizerConfig(optimizer, learning_rate=0.1, max_grad_norm=1e9))
  cfg = StepConfig(LOSS, micro_batches, transform=transform)
  step = functools.partial(train_step, loss=policy_loss, model=tiny_batch.MODEL, tx=tx, cfg=cfg)
  return jax.jit(step), tx


def change(transform: Transform | None, batch, *options):
  """(update of the parameters, metrics)"""
  step, tx = step_of(transform, *options)
  state = init_state(jax.tree.map(jnp.copy, tiny_batch.parameters()), tx)
  after, metrics = step(state, batch)
  return jax.tree.map(jnp.subtract, after.params, state.params), metrics


# --- ess


@pytest.fixture(scope="module")
def uneven():
  """A batch with a column of log-probs at the start of the updates, NaN where nothing is read."""
  batch = tiny_batch.make()
  rng, mask = np.random.default_rng(3), np.asarray(batch.rollout.mask)
  column = np.where(mask, -2.5 + rng.normal(0, 0.8, mask.shape), np.nan).astype(np.float32)
  return batch.replace(columns={RECOMPUTED_COLUMN: jnp.asarray(column)})


def factor_by_hand(batch, power, reference, rows) -> float:
  mask = np.asarray(batch.rollout.mask)
  moved = batch.columns[RECOMPUTED_COLUMN] - batch.rollout.behavior_log_probs
  weights = np.exp(np.where(mask, np.asarray(moved, np.float64), 0).sum(1))[rows]
  share = weights.sum() ** 2 / (weights ** 2).sum() / len(weights)
  return min(1.0, share / reference) ** power


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_is_scaled_by_the_share_of_the_sequences_that_count(uneven, optimizer):
  """Also under Adam, which undoes a factor of the loss."""
  rows = np.arange(tiny_batch.ROWS) != DROPPED
  expected = factor_by_hand(uneven, 0.5, 0.9, rows)
  assert 0.4 < expected < 0.95 and abs(
      expected - factor_by_hand(uneven, 0.5, 0.9, rows | True)) > 0.01
  plain, _ = change(None, uneven, optimizer)
  short, metrics = change(Transform("ess", power=0.5, reference=0.9), uneven, optimizer)
  assert float(metrics["ess/factor"].total) == pytest.approx(expected, abs=1e-5)
  close(short, scaled(plain, expected))
  if optimizer == "adamw":
    weaker = uneven.replace(loss_weights=expected * uneven.loss_weights)
    with pytest.raises(AssertionError):
      close(change(None, weaker, optimizer)[0], scaled(plain, expected))


def test_a_step_on_the_samplers_own_policy_is_whole(uneven):
  column = {RECOMPUTED_COLUMN: uneven.rollout.behavior_log_probs}
  _, metrics = change(Transform("ess", power=0.5, reference=0.9), uneven.replace(columns=column))
  assert float(metrics["ess/factor"].total) == 1.0


# --- entropy_share


def gated_by_hand(batch, share: float, groups: int = 1):
  """The batch whose other tokens have correction weight 0; the wrong way: a quantile a group."""
  cfg = StepConfig(LOSS)
  stats, mask = jax.jit(functools.partial(
      stats_before, model=tiny_batch.MODEL, cfg=cfg, stats=frozenset({"entropy"})))(
          tiny_batch.parameters(), batch)
  gates = []
  for entropy, live in zip(np.split(np.asarray(stats.entropy), groups),
                           np.split(np.asarray(mask), groups), strict=True):
    gates.append(live & (entropy >= np.quantile(entropy[live], 1 - share)))
  gate = np.concatenate(gates)
  assert 0 < gate.sum() < np.asarray(mask).sum()
  return batch.replace(correction_weights=batch.correction_weights * gate)


def test_tokens_of_low_entropy_lose_their_gradient_and_no_other():
  batch = tiny_batch.make()
  gated, metrics = change(Transform("entropy_share", share=0.4), batch)
  close(gated, change(None, gated_by_hand(batch, 0.4))[0])
  kept = metrics["entropy_share/kept"]
  assert 0.35 < float(kept.total / kept.count) < 0.5
  close(change(Transform("entropy_share", share=1.0), batch)[0], change(None, batch)[0])


@pytest.mark.slow
def test_the_quantile_is_the_optimizer_batch_s():
  batch, transform = tiny_batch.make(), Transform("entropy_share", share=0.4)
  gated = change(transform, batch)[0]
  close(change(transform, batch, "sgd", 2)[0], gated)
  with pytest.raises(AssertionError):
    close(change(None, gated_by_hand(batch, 0.4, groups=4))[0], gated)
