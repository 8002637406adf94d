"""Pairs from groups by hand, and losses of pairs under a model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.critical_tokens import pairs as preference
from experiments.papers.critical_tokens.dpo import DpoConfig, Side, dpo_loss
from jaxrl_llm.config import ModelConfig, StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective.row_stats import row_stats
from jaxrl_llm.training.train_step import gradients

MODEL = Model(ModelConfig(vocab_size=13, width=16, num_layers=1, num_heads=2, num_kv_heads=1,
                          head_dim=8, mlp_width=24))
# Group 7: right rows 1 and 5; wrong answers b twice, c once. Group 2: all right. Group 5: row 6 has
# no answer, and c is more frequent than d. Group 0: all wrong.
GROUP = np.array([7, 7, 2, 7, 7, 7, 5, 5, 2, 5, 5, 0, 5])
RIGHT = np.array([0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1], bool)
ANSWER = ["c", "a", "a", "b", "b", "a", None, "d", "a", "c", "c", "z", "a"]


def test_pairs_worked_out_by_hand():
  pairs = preference.preference_pairs(GROUP, RIGHT, ANSWER)
  np.testing.assert_array_equal(pairs, [[1, 3], [12, 9]])
  assert preference.preference_pairs(GROUP[:1], RIGHT[:1], ANSWER[:1]).shape == (0, 2)
  first = [[1, 0], [12, 6]]  # first wrong row of each group, whatever its answer
  assert pairs.tolist() != first


def test_rows_of_the_contrast_worked_out_by_hand():
  positive, negative = preference.contrast_rows(GROUP, RIGHT, ANSWER)
  np.testing.assert_array_equal(positive, [1, 2, 12])
  # b covers 2 of 3 in group 7, c 2 of 3 in group 5, z all of group 0.
  np.testing.assert_array_equal(negative, [3, 9, 11])
  np.testing.assert_array_equal(preference.contrast_rows(GROUP, RIGHT, ANSWER, 0.7)[1],
                                [3, 0, 9, 7, 11])


@functools.cache
def params(seed=0):
  return jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(seed)))


def responses(seed, rows=4):
  rng = np.random.default_rng(seed)
  length = rng.integers(5, 9, rows).astype(np.int32)
  mask = (np.arange(8) >= 3) & (np.arange(8) < length[:, None])
  tokens = rng.integers(0, 13, (rows, 8)).astype(np.int32)
  ref, weights = (rng.random((rows, 8)).astype(np.float32) for _ in range(2))
  return preference.Responses(*map(jnp.asarray, (tokens, length, mask, -ref, weights)))


preference_loss = jax.jit(preference.preference_loss, static_argnames=("model", "cfg"))
log_probs = jax.jit(lambda *given: row_stats(*given, model=MODEL).log_probs)


def batch():
  return preference.PreferenceBatch(responses(0), responses(1), jnp.asarray([.1, .2, .3, .4]))


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [DpoConfig(), DpoConfig(nll_coef=0.5, gamma=0.3)])
def test_the_loss_of_a_batch_is_that_of_its_rows(cfg):
  given = batch()
  loss, metrics = preference_loss(params(), given, model=MODEL, cfg=cfg)
  sides = [Side(log_probs(params(), one.tokens, one.length), one.ref_log_probs, one.mask)
           for one in (given.chosen, given.rejected)]
  losses = dpo_loss(*sides, cfg, chosen_w=given.chosen.weights, rejected_w=given.rejected.weights)
  np.testing.assert_allclose(loss, np.sum(losses * given.pair_weights), rtol=1e-5)
  swapped = preference.PreferenceBatch(given.rejected, given.chosen, given.pair_weights)
  other, _ = preference_loss(params(), swapped, model=MODEL, cfg=cfg)
  assert abs(other - loss) > 1e-2
  chosen = sides[0].log_probs[np.asarray(given.chosen.mask)].mean()
  metric = metrics["preference/chosen_log_prob"]
  np.testing.assert_allclose(metric.total / metric.count, chosen, rtol=1e-5)


@pytest.mark.nightly
def test_micro_batches_of_pairs_change_nothing():
  def loss(params, batch, *, model, cfg):
    del cfg
    return preference.preference_loss(params, batch, model=model, cfg=DpoConfig())

  def mean_of_each(params, batch, *, model, cfg):
    value, metrics = loss(params, batch, model=model, cfg=cfg)
    return value / jnp.sum(batch.pair_weights), metrics

  def differ(loss):
    full, parts = (gradients(params(), batch(), loss=loss, model=MODEL,
                             cfg=StepConfig(micro_batches=count))[1] for count in (1, 2))
    return max(float(np.max(np.abs(a - b)))
               for a, b in zip(*map(jax.tree.leaves, (full, parts)), strict=True))

  assert differ(loss) < 1e-4 < differ(mean_of_each)
