"""What goes from one iteration to the next: nothing that a checkpoint does not hold."""

import dataclasses
import itertools
import weakref

import jax
import numpy as np
import pytest
import smallest

from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.run_state import abstract_saved, first_state, restored_state
from jaxrl_llm.store.checkpoints import Checkpoints
from jaxrl_llm.wiring.loop import make_loop


def built(**overrides):
  """PIPO on dynamically sampled groups by an older policy: a batch, means, parameters, and a cursor
  that runs ahead.
  """
  return smallest.built(1, "grpo", **{
      "updates.staleness": 1, "dynamic_sampling.enabled": True, "dynamic_sampling.max_draws": 200,
      "aggregation.name": "token", "plugins": ("experiments.papers.pipo",),
      "transform.name": "pipo", "transform.history": 2} | overrides)


@pytest.fixture(scope="module")
def history():
  """(built, start, the run after each of 5 iterations, host values of each)."""
  made = built()
  start = smallest.start_of(made)
  return made, start, *_go_on(made, first_state(made.learner, start), start, range(1, 6))


def _go_on(made, run, start, iterations):
  runs, values = [], []
  for iteration in iterations:
    # The next iteration donates this one's state: keep a copy on the host.
    run, _, host, rows = iterate(make_loop(*made), run, start.params, iteration)
    runs.append((jax.device_get(run.saved()), run.cursor))
    values.append(host | {"policy_step": {row["policy_step"] for row in rows}})
  return runs, values


@pytest.mark.slow
def test_pipo_steps_once_its_history_is_full(history):
  _, _, runs, values = history
  assert ["pipo/xi" in v for v in values] == [False, False, True, True, True]
  assert [int(tree["train"].step) for tree, _ in runs] == [2, 4, 7, 10, 13]


def test_rollouts_come_from_the_parameters_of_an_iteration_before(history):
  """Optimizer steps before each iteration: 0, 2, 4, 7, 10."""
  _, _, runs, values = history
  assert [v["policy_step"] for v in values] == [{0}, {0}, {2}, {4}, {7}]
  assert [v["rollout/staleness"] for v in values] == [0, 2, 2, 3, 3]
  for (before, _), (after, _) in itertools.pairwise(runs):
    jax.tree.map(np.testing.assert_array_equal, after["stale"][-1].params, before["train"].params)


def test_the_cursor_runs_ahead_of_the_iterations(history):
  _, _, runs, values = history
  draws = np.cumsum([v["dynamic_sampling/draws"] for v in values])
  assert [cursor for _, cursor in runs] == (1 + draws).tolist() and draws[-1] > 5


@pytest.mark.parametrize("at", [1, 3])
def test_a_restored_run_goes_on_bit_for_bit(history, at, tmp_path):
  made, start, runs, _ = history
  found = _through_a_checkpoint(made, runs[at - 1][0], at, tmp_path)
  again, _ = _go_on(made, restored_state(found, start), start, range(at + 1, 6))
  jax.tree.map(np.testing.assert_array_equal, again[-1][0], runs[-1][0])


def test_a_run_that_forgot_its_cursor_is_told_apart(history, tmp_path):
  made, start, runs, _ = history
  found = _through_a_checkpoint(made, runs[0][0], 1, tmp_path)
  forgetful = restored_state({**found, "cursor": np.int32(1)}, start)
  again, _ = _go_on(made, forgetful, start, range(2, 6))
  assert again[-1][1] != runs[-1][1]


def _through_a_checkpoint(made, tree, iteration, folder):
  checkpoints = Checkpoints(folder, made.cfg.checkpoint)
  checkpoints.save(iteration, tree)
  at, found = checkpoints.restore(abstract_saved(made.learner))
  checkpoints.close()
  assert at == iteration
  return found


@pytest.mark.parametrize("kept", [False, True], ids=["freed", "kept"])
def test_an_update_does_not_keep_the_copy_with_adapters_merged(kept):
  """What the sampler reads beside the trained weights; `kept` is the wrong version."""
  made = smallest.built(1, "grpo", **{"parameters.train": "lora", "parameters.lora_rank": 2})
  start, copies, held, alive = smallest.start_of(made), [], [], []
  learner = made.learner

  def merged(state):
    params = learner.merged(state)
    copies.append(weakref.ref(params["blocks"][0]["mlp"]["gate"]))
    held.extend([params] * kept)
    return params

  def step(*arguments):
    alive.append(any(copy() is not None for copy in copies))
    return learner.step(*arguments)

  watched = made._replace(learner=dataclasses.replace(learner, merged=merged, step=step))
  iterate(make_loop(*watched), first_state(learner, start), None, 1)
  assert copies and alive == [kept, kept]
