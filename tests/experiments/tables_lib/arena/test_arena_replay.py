"""Epochs over a batch, and groups of mixed ages, against one update after the other."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tables_lib.arena import methods, rows, runs, updates
from experiments.tables_lib.arena.setting import Setting

SETTING = Setting("warm", "tabular", length=16, groups=4, group_size=4, batches=1, iterations=4,
                  evaluations=4, ring=5)
PLACE = runs.Place(jnp.float32(0.1), jnp.int32(0), jnp.float32(0.0))


def after_one_iteration(setting):
  """The parameters after the first iteration of a run with cispo."""
  begin, method = runs.start(0, setting), methods.parse("cispo", setting.length)
  context = updates.Context(method, setting, runs.get_policy(setting.policy), begin.automaton,
                            begin.fixed)
  ring = jnp.broadcast_to(begin.params, (setting.ring, *begin.params.shape))
  critic = jnp.zeros((runs.MARKS, begin.automaton.starts.shape[0]))
  carry = (updates.learner(method, setting, begin.params), ring, critic, None)
  (learner, *_), _ = runs._iterate(context, begin.key, PLACE, carry, 0)
  return context, begin, carry, learner


def test_epochs_go_through_the_same_batch_again():
  setting = dataclasses.replace(SETTING, epochs=3)
  context, begin, (learner, ring, critic, _), end = after_one_iteration(setting)
  sampling, noise = jax.random.split(jax.random.fold_in(begin.key, 0))
  sampler = runs.behavior(context, ring, 0, PLACE, noise)
  samples = rows.sample(begin.automaton, context.policy, sampler, sampling, setting)
  batch = updates.scored(context, samples, sampler, context.prepare(learner.params), critic)
  steps = [learner.params]
  for _ in range(3):
    learner, _ = updates.update(context, learner, batch, PLACE.step)
    steps.append(learner.params)
  np.testing.assert_allclose(end.params, steps[3], atol=1e-6)
  assert np.abs(steps[3] - steps[1]).max() > 1e-2, "one epoch is the same"
  one = after_one_iteration(SETTING)[3]
  np.testing.assert_allclose(one.params, steps[1], atol=1e-6)


def kept_rows(setting):
  """The rows of five iterations: each token is the iteration that it is of."""
  shape = (setting.ring, setting.rows, setting.length)
  number = jnp.broadcast_to(jnp.arange(setting.ring)[:, None, None], shape)
  group = jnp.arange(setting.rows) // setting.group_size
  return rows.Rows(0 * number, number, number >= 0, 0.0 * number[..., 0],
                   jnp.broadcast_to(group, shape[:2]).astype(jnp.float32), 0 * number[..., 0])


@pytest.mark.parametrize("iteration, age, slots", [(0, 3, {0}), (2, 4, {0, 1, 2}), (7, 1, {1, 2}),
                                                   (7, 0, {2}), (9, 4, {0, 1, 2, 3, 4})])
def test_groups_are_drawn_from_the_ages_that_may_be(iteration, age, slots):
  """None twice, each with the policy of the iteration that it is of."""
  setting = dataclasses.replace(SETTING, mixture="replay")
  context, *_ = after_one_iteration(SETTING)
  ring = jax.random.normal(jax.random.key(1), (setting.ring, 32 * 4))
  all_slots = set()
  for seed in range(12):
    drawn, behavior = runs.replayed(context, ring, kept_rows(setting), iteration, age,
                                    jax.random.key(seed))
    slot = np.asarray(drawn.tokens)
    np.testing.assert_array_equal(behavior.part, slot)
    pairs = list(zip(slot[::4, 0], np.asarray(drawn.rewards)[::4], strict=True))
    assert len(set(pairs)) == 4
    np.testing.assert_array_equal(drawn.group_id, np.repeat(np.arange(4), 4))
    all_slots |= set(slot.ravel().tolist())
  assert all_slots == slots
  one = context.prepare(ring[max(slots)]).log_probs
  tables = behavior.prepared.log_probs.reshape(setting.ring, *one.shape)
  np.testing.assert_allclose(tables[max(slots)], one, atol=1e-6)
