"""`kl.place=reward`: the divergence is taken from the reward of each token, worked out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import AdvantageConfig, BatchConfig, KLConfig
from jaxrl_llm.training import batches
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import Rollout

COEF = 0.5
MASK = np.array([[False, True, True], [False, True, False]])
REWARDS = np.array([1.0, 0.0], np.float32)
ANCHOR = np.array([[0.0, -1.0, -2.0], [0.0, -0.5, 7.0]], np.float32)
REFERENCE = np.array([[0.0, -1.4, -1.8], [0.0, -0.1, 3.0]], np.float32)
# k1 = anchor - reference on policy tokens: 0.4 and -0.2 in row 0, -0.4 in row 1.
# The row's reward is R - coef * sum of k1: 1 - 0.5 * 0.2 and 0 - 0.5 * (-0.4).
TOTALS = np.array([0.9, 0.2])
CENTRED = np.array([0.35, -0.35])  # less the group's mean, 0.55
EXPECTED = {"none": TOTALS, "grpo": CENTRED / (np.sqrt(2 * 0.35**2) + 1e-6)}


def batch_of(name, kl=KLConfig("k1", COEF, "reward"), make=batches.optimizer_batches, anchor=ANCHOR,
             reference=REFERENCE):
  """Returns the one optimizer batch of two rows and three columns, and its metrics."""
  zeros = jnp.zeros(2, jnp.int32)
  rollout = Rollout(jnp.ones((2, 3), jnp.int32), jnp.asarray(MASK), zeros + 3, zeros + 1,
                    jnp.asarray(ANCHOR), zeros > 0, zeros, zeros, jnp.arange(2), zeros)
  scores = Scores(anchor_log_probs=jnp.asarray(anchor), ref_log_probs=jnp.asarray(reference))
  cfg = BatchConfig(2, 1, advantage=AdvantageConfig(name), kl=kl)
  (batch,), metrics = make(rollout, jnp.asarray(REWARDS), jnp.ones(2, bool), scores, cfg=cfg)
  return batch, metrics


def check(make):
  for name, expected in EXPECTED.items():
    batch, metrics = batch_of(name, make=make)
    np.testing.assert_allclose(batch.advantages, MASK * expected[:, None], rtol=1e-5, err_msg=name)
    divergence = metrics["kl/reference"]
    np.testing.assert_allclose(divergence.total / divergence.count, -0.2 / 3, rtol=1e-5)


def with_coefficient(change):
  """Returns a wrong version of `optimizer_batches`, with another coefficient of the term."""

  def wrong(*inputs, cfg):
    kl = dataclasses.replace(cfg.kl, coef=change(cfg.kl.coef))
    return batches.optimizer_batches(*inputs, cfg=dataclasses.replace(cfg, kl=kl))

  return wrong


def dropped(*inputs, cfg):
  """Wrong: the divergence is reported, but not taken from the reward."""
  _, metrics = batches.optimizer_batches(*inputs, cfg=cfg)
  without = dataclasses.replace(cfg, kl=KLConfig())
  return batches.optimizer_batches(*inputs, cfg=without)[0], metrics


def test_the_reward_loses_the_divergence():
  check(batches.optimizer_batches)
  for wrong in (dropped, with_coefficient(np.negative), with_coefficient(np.square)):
    with pytest.raises(AssertionError):
      check(wrong)


def test_the_divergence_carries_no_gradient():
  """The reward is a constant: nothing flows back into the log-probs of anchor and reference."""

  def total(anchor, reference):
    batch, metrics = batch_of("none", anchor=anchor, reference=reference)
    return jnp.sum(batch.advantages) + metrics["kl/reference"].total

  gradients = jax.grad(total, (0, 1))(jnp.asarray(ANCHOR), jnp.asarray(REFERENCE))
  assert not any(np.any(g) for g in gradients)


def test_a_term_in_the_loss_leaves_the_reward_alone():
  batch, metrics = batch_of("none", KLConfig("k1", COEF, "loss"))
  np.testing.assert_allclose(batch.advantages, MASK * REWARDS[:, None])
  assert "kl/reference" not in metrics, "policy_loss reports it"
