"""Completions under new weights: each token's log-prob is of those that sampled it; restarts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from smallest import start_of
from test_overlap import assert_same, built, go_on

from jaxrl_llm.config import ConfigError
from jaxrl_llm.objective.row_stats import row_stats
from jaxrl_llm.runs.in_flight import version_metrics
from jaxrl_llm.runs.run_state import first_state, restored_state

ITERATIONS = 5
IN_FLIGHT = {"updates.in_flight": True, "updates.overlap": False, "updates.staleness": 0,
             "rollout.slots": 24, "rollout.chunk": 2, "rollout.max_new_tokens": 40,
             "rollout.window": 42, "entropy.coef": 1.0}  # the policy moves whatever the rewards are


@pytest.fixture(scope="module")
def history():
  """(built, start, what each iteration left): iterations of 2 optimizer steps."""
  parts = built(**IN_FLIGHT)
  start = start_of(parts)
  run = first_state(parts.learner, start)
  return parts, start, go_on(parts, run, start, range(1, ITERATIONS + 1), None)


def params_of(history):
  """Parameters by optimizer step."""
  _, start, left = history
  return {0: start.params} | {int(tree["train"].step): tree["train"].params for tree, *_ in left}


def padded(rows, name, width):
  return np.array([np.pad(np.asarray(row[name], float), (0, width - len(row["tokens"])))
                   for row in rows])


def gap(history, version_of):
  """The largest difference between recorded log-probs and those under the policies of the steps
  `version_of(rows, number)`, [B, L] or [B, 1], of the rows of an iteration; None skips it.
  """
  parts, _, left = history
  width, model, largest = parts.cfg.rollout.row_length, parts.learner.model, 0.0
  stats = jax.jit(lambda params, *rows: row_stats(params, *rows, model=model).log_probs)
  for number, (_, _, rows, _) in enumerate(left, 1):
    version = version_of(rows, number)
    if version is None:
      continue
    tokens, mask, behavior = (padded(rows, name, width)
                              for name in ("tokens", "mask", "behavior_log_probs"))
    length = np.array([len(row["tokens"]) for row in rows])
    for step, params in params_of(history).items():
      scores = stats(params, jnp.asarray(tokens, jnp.int32), jnp.asarray(length))
      here = (mask > 0) & (version == step)
      largest = max(largest, np.abs(scores - behavior)[here].max(initial=0.0))
  return largest


@pytest.mark.slow
def test_each_token_has_the_log_prob_of_the_weights_that_sampled_it(history):
  width = history[0].cfg.rollout.row_length

  def steps(rows, number):
    if "policy_steps" not in rows[0]:  # each completion is of one policy
      return None
    return np.where(padded(rows, "mask", width), padded(rows, "policy_steps", width), 0)

  def last_step(rows, number):
    versions = steps(rows, number)
    return None if versions is None else versions.max(1, keepdims=True)

  assert gap(history, steps) < 2e-5
  assert gap(history, last_step) > 1e-3, "the weights of the last token would serve for all"


@pytest.mark.slow
def test_completions_are_of_several_policies(history):
  parts, _, left = history
  assert max(values["in_flight/versions_max"] for *_, values in left) >= 3
  for number, (tree, cursor, rows, values) in enumerate(left, 1):
    assert cursor == number + 2 and len(rows) == parts.cfg.rollout.rows
    groups = np.array([row["group_id"] for row in rows]).reshape(-1, parts.cfg.rollout.group_size)
    assert (groups == groups[:, :1]).all() and (np.diff(groups[:, 0]) > 0).all()
    assert values["in_flight/unfinished_tokens"] == tree["unfinished"]["count"].sum()
  trained = np.concatenate([[row["row_id"] for row in rows] for _, _, rows, _ in left])
  left_over = left[-1][0]["unfinished"]["row_id"]
  # Every completion that was begun is trained on once, or is still in the making.
  np.testing.assert_array_equal(np.sort(np.concatenate([trained, left_over])),
                                16 + np.arange(16 * (ITERATIONS + 1)))


def test_a_restored_run_goes_on_with_them(history):
  parts, start, left = history
  run = restored_state(jax.tree.map(np.array, left[1][0]), start)
  again = go_on(parts, run, start, range(3, ITERATIONS + 1), None)
  assert_same(again, left[2:])


def test_versions_and_ages_by_place():
  """Two rows, of the steps 4, 4, 8 and 8; 8 steps were done."""
  mask = np.array([[False, True, True, False, True], [False, True, False, False, False]])
  steps = np.array([[0, 4, 4, 0, 8], [0, 8, 0, 0, 0]])
  assert version_metrics(mask, steps, 8) == {
      "in_flight/versions": 1.5, "in_flight/versions_max": 2.0, "in_flight/age/from_1": 2.0,
      "in_flight/age/from_2": 2.0}


@pytest.mark.parametrize(("overrides", "message"), [
    ({"rollout.slots": 0}, "rollout.slots > 0"),
    ({"updates.staleness": 1}, "updates.staleness = 0"),
    ({"dynamic_sampling.enabled": True}, "dynamic_sampling.enabled = False"),
    ({"rollout.engine_per_device": True}, "rollout.engine_per_device = False"),
    ({"rollout.max_turns": 2, "rollout.tool_chunks": None}, "rollout.tool_chunks=1"),
])
def test_what_does_not_go_together_is_refused(overrides, message):
  with pytest.raises(ConfigError, match=message):
    built(**IN_FLIGHT | overrides)
