"""What goes from one iteration to the next: nothing that a checkpoint does not hold."""

import dataclasses
import itertools
import weakref

import jax
import numpy as np
import pytest
import smallest
from test_overlap import PIPO, assert_same, go_on

from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.run_state import abstract_saved, first_state, restored_state
from jaxrl_llm.store.checkpoints import Checkpoints
from jaxrl_llm.wiring.loop import make_loop


def built(**overrides):
  """PIPO on dynamically sampled groups by an older policy: the cursor runs ahead."""
  return smallest.built(1, "grpo", **PIPO | {
      "updates.staleness": 1, "aggregation.name": "token"} | overrides)


@pytest.fixture(scope="module")
def history():
  """(built, start, what each of 5 iterations left)."""
  parts = built()
  start = smallest.start_of(parts)
  return parts, start, go_on(parts, first_state(parts.learner, start), start, range(1, 6), None)


def test_rollouts_come_from_the_parameters_of_an_iteration_before(history):
  """Optimizer steps before each iteration: 0, 2, 4, 7, 10; PIPO steps once its history is full."""
  *_, left = history
  policies = [{row["policy_step"] for row in rows} for _, _, rows, _ in left]
  assert policies == [{0}, {0}, {2}, {4}, {7}]
  assert [values["rollout/staleness"] for *_, values in left] == [0, 2, 2, 3, 3]
  for (before, *_), (after, *_) in itertools.pairwise(left):
    jax.tree.map(np.testing.assert_array_equal, after["stale"][-1].params, before["train"].params)


def test_the_cursor_runs_ahead_of_the_iterations(history):
  *_, left = history
  draws = np.cumsum([values["dynamic_sampling/draws"] for *_, values in left])
  assert [cursor for _, cursor, _, _ in left] == (1 + draws).tolist() and draws[-1] > 5


@pytest.mark.parametrize("at", [1, 3])
def test_a_restored_run_goes_on_bit_for_bit(history, at, tmp_path):
  parts, start, left = history
  tree = _through_a_checkpoint(parts, left[at - 1][0], at, tmp_path / "right")
  again = go_on(parts, restored_state(tree, start), start, range(at + 1, 6), None)
  assert_same(again, left[at:])
  tree = _through_a_checkpoint(parts, left[at - 1][0], at, tmp_path / "wrong")
  forgetful = restored_state({**tree, "cursor": np.int32(1)}, start)
  with pytest.raises(AssertionError):
    assert_same(go_on(parts, forgetful, start, range(at + 1, 6), None), left[at:])


def _through_a_checkpoint(parts, tree, iteration, folder):
  checkpoints = Checkpoints(folder, parts.cfg.checkpoint)
  checkpoints.save(iteration, tree)
  at, copy = checkpoints.restore(abstract_saved(parts.learner))
  checkpoints.close()
  assert at == iteration
  return copy


@pytest.mark.parametrize("kept", [False, True], ids=["freed", "kept"])
def test_an_update_does_not_keep_the_copy_with_adapters_merged(kept):
  """What the sampler reads beside the trained weights; `kept` is the wrong version."""
  parts = smallest.built(1, "grpo", **{"parameters.train": "lora", "parameters.lora_rank": 2})
  start, copies, held, alive = smallest.start_of(parts), [], [], []
  learner = parts.learner

  def merged(state):
    params = learner.merged(state)
    copies.append(weakref.ref(params["blocks"][0]["mlp"]["gate"]))
    held.extend([params] * kept)
    return params

  def step(*arguments):
    alive.append(any(copy() is not None for copy in copies))
    return learner.step(*arguments)

  watched = parts._replace(learner=dataclasses.replace(learner, merged=merged, step=step))
  iterate(make_loop(*watched), first_state(learner, start), None, 1)
  assert copies and alive == [kept, kept]
