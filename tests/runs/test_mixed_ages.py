"""Batches of mixed ages: which groups they take, whose log-probs rows have, restarts."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from test_in_flight import gap
from test_overlap import assert_same, built, go_on, start_of

from jaxrl_llm.config import ConfigError, UpdateConfig
from jaxrl_llm.runs import replay
from jaxrl_llm.runs.run_state import abstract_saved, first_state, restored_state
from jaxrl_llm.types import Rollout

ITERATIONS, AGES = 6, 2
REPLAY = {"updates.replay": AGES, "updates.overlap": False, "updates.staleness": 0,
          "entropy.coef": 1.0}  # the policy moves whatever the rewards are


@pytest.fixture(scope="module")
def history():
  """(built, start, what each iteration left): iterations of 2 optimizer steps."""
  parts = built(**REPLAY)
  start = start_of(parts)
  run = first_state(parts.learner, start)
  return parts, start, go_on(parts, run, start, range(1, ITERATIONS + 1), None)


def steps(rows, number):
  """[B, 1]: optimizer steps before the weights that sampled each row."""
  return np.array([row["policy_step"] for row in rows])[:, None]


def ages(rows, number):
  """The age of each row in iterations, from the step of the weights that sampled it."""
  return number - 1 - steps(rows, number)[:, 0] // 2


@pytest.mark.slow
def test_each_row_has_the_log_probs_of_the_weights_that_sampled_it(history):
  assert gap(history, steps) < 2e-5
  newest = lambda rows, number: np.full((len(rows), 1), 2 * (number - 1))
  assert gap(history, newest) > 1e-3, "all rows are of one policy"


@pytest.mark.slow
def test_a_batch_takes_groups_of_all_ages_and_none_twice(history):
  parts, _, left = history
  size, every = parts.cfg.rollout.group_size, {}
  for number, (tree, cursor, rows, values) in enumerate(left, 1):
    groups = np.array([row["group_id"] for row in rows]).reshape(-1, size)
    assert (groups == groups[:, :1]).all() and len(set(groups[:, 0])) == parts.cfg.rollout.prompts
    age = ages(rows, number)
    assert cursor == number + 1 and age.max() <= min(AGES, number - 1)
    assert values["replay/age"] == age.mean() and values["replay/age_max"] == age.max()
    assert values["replay/new"] == np.mean(age == 0)
    assert values["rollout/staleness"] == pytest.approx(np.average(
        2 * age, weights=[np.sum(row["mask"]) for row in rows]))
    for row in rows:
      text = (row["completion"], row["reward"], row["correct"], row["answer"], row["prompt"])
      assert every.setdefault(row["row_id"], text) == text
      assert row["correct"] == (row["completion"].rpartition("=")[2] == row["answer"])
    kept = tree["replay"]["iteration"][::size]
    np.testing.assert_array_equal(kept, np.repeat(np.maximum(
        np.arange(number - AGES + 1, number + 1), 0), parts.cfg.rollout.prompts))
  assert {int(a) for number, (_, _, rows, _) in enumerate(left, 1)
          for a in ages(rows, number)} == {0, 1, 2}
  assert max(values["replay/uses"] for *_, values in left) > 1


@pytest.mark.slow
def test_a_restored_run_goes_on_with_the_kept_groups(history):
  parts, start, left = history
  again = restored_state(left[2][0], start)
  jax.tree.map(lambda x, y: np.testing.assert_equal(np.shape(x), np.shape(y)), again.saved(),
               abstract_saved(parts.learner))
  assert_same(go_on(parts, again, start, range(4, ITERATIONS + 1), None), left[3:])
  empty = dataclasses.replace(restored_state(left[2][0], start),
                              groups=first_state(parts.learner, start).groups)
  with pytest.raises(AssertionError):
    assert_same(go_on(parts, empty, start, range(4, ITERATIONS + 1), None), left[3:])


def pool(iteration, rewards, keep=None):
  """Groups of two rows with nothing but what a draw reads."""
  rewards = np.array(rewards, np.float32)
  keep = np.ones(len(rewards), bool) if keep is None else np.array(keep, bool)
  blank = np.zeros(len(rewards), np.int32)
  return replay.Groups(Rollout(*[blank] * 10), rewards, rewards, blank, keep, keep, keep,
                       np.repeat(iteration, 2), blank)


def test_weights_of_each_rule():
  groups = pool([0, 1, 3, 4], [1, 0, 2, 0, 1, 1, 0, 3], [1, 1, 1, 1, 1, 1, 1, 0])
  weights = {rule: replay.weights(groups, 2, 4, UpdateConfig(replay=3, replay_rule=rule,
                                                             replay_decay=0.25))
             for rule in ("uniform", "recency", "advantage")}
  np.testing.assert_allclose(weights["uniform"], [0, 1, 1, 1])
  np.testing.assert_allclose(weights["recency"], [0, 1 / 64, 1 / 4, 1])
  np.testing.assert_allclose(weights["advantage"], [0, 1, 0, 0], atol=2e-6)
  assert (weights["advantage"][2:] > 0).all(), "they are taken where there is no other"


def shares(draw, weight, count, times=20_000):
  rng = np.random.default_rng(0)
  return sum(np.bincount(draw(weight, count, rng), minlength=len(weight))
             for _ in range(times)) / times


def test_a_draw_is_one_after_the_other_without_replacement():
  weight = np.array([1.0, 2.0, 0.0, 5.0])
  expected = np.zeros(4)
  for first, second in itertools.permutations((0, 1, 3), 2):
    chance = weight[first] / 8 * weight[second] / (8 - weight[first])
    expected[[first, second]] += chance
  np.testing.assert_allclose(shares(replay.draw, weight, 2), expected, atol=0.015)
  wrong = {"largest": lambda w, count, rng: np.argsort(-w)[:count],
           "with replacement": lambda w, count, rng: rng.choice(4, count, p=w / w.sum())}
  for draw in wrong.values():
    assert np.abs(shares(draw, weight, 2, 2000) - expected).max() > 0.05
  order = np.array([replay.draw(weight, 2, np.random.default_rng(seed))[0] for seed in range(4000)])
  assert np.bincount(order, minlength=4)[0] / 4000 == pytest.approx(expected[0] / 2, abs=0.02)


def test_parts_of_a_reward_are_refused():
  with pytest.raises(ConfigError, match="the parts of a reward are not kept"):
    built(**REPLAY | {"advantage.name": "gdpo"})
