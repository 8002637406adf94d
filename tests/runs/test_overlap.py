"""A batch sampled while the one before trains is the one that would have been sampled after it."""

import contextlib
import threading
import types

import jax
import numpy as np
import pytest
import smallest
import test_rollout_batch
from smallest import start_of

from experiments.commands import saved
from jaxrl_llm.config import ConfigError, to_dict
from jaxrl_llm.runs.dynamic_sampling import DriedUpError, sample_batch
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.overlap import Ahead
from jaxrl_llm.runs.run_state import abstract_saved, first_state, restored_state
from jaxrl_llm.store import workdir
from jaxrl_llm.store.checkpoints import Checkpoints
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import make_loop, make_source

ITERATIONS = 5
PIPO = {"dynamic_sampling.enabled": True, "dynamic_sampling.max_draws": 200,
        "plugins": ("experiments.papers.pipo",), "transform.name": "pipo", "transform.history": 2}
LORA = {"parameters.train": "lora", "updates.staleness": 2}
SHARED = {"rollout.slots": 8, "rollout.shared_prefix": True}


def built(devices=1, **overrides):
  return smallest.built(devices, "grpo", **{"iterations": ITERATIONS, "updates.staleness": 1,
                                            "updates.overlap": True} | overrides)


def go_on(parts, run, start, iterations, ahead, before=lambda run: None):
  """(saved state, cursor, rows, host values but for times) after each iteration."""
  out = []
  for iteration in iterations:
    before(run)
    run, _, values, rows = iterate(make_loop(*parts), run, parts.learner.merged(start), iteration,
                                   ahead)
    timeless = {k: v for k, v in values.items() if not k.startswith("time/")}
    out.append((jax.device_get(run.saved()), run.cursor, rows, timeless))
  return out


def ahead_of(parts, kind=Ahead):
  return kind(make_source(parts.cfg, parts.task, parts.sampler))


def from_the_start(parts, ahead=None, before=lambda run: None):
  start = start_of(parts)
  run = first_state(parts.learner, start)
  with ahead or contextlib.nullcontext():
    return go_on(parts, run, start, range(1, ITERATIONS + 1), ahead, before)


def assert_same(outcomes, expected):
  for (tree, *rest), (expected_tree, *expected_rest) in zip(outcomes, expected, strict=True):
    jax.tree.map(np.testing.assert_array_equal, tree, expected_tree)
    np.testing.assert_equal(rest, expected_rest)


@pytest.fixture(scope="module", params=[PIPO, LORA], ids=["dynamic sampling and PIPO", "LoRA"])
def case(request):
  """(built, what each iteration of a run without overlap left)."""
  parts = built(**request.param)
  return parts, from_the_start(parts)


@pytest.mark.slow
def test_overlap_changes_nothing(case):
  parts, expected = case
  steps = [{row["policy_step"] for row in rows} for _, _, rows, _ in expected]
  assert len({tuple(step) for step in steps
             }) >= ITERATIONS - parts.cfg.updates.staleness, "the sampler never moved"
  begun = []

  class Counted(Ahead):
    def begin(self, params, step, cursor):
      begun.append(cursor)
      super().begin(params, step, cursor)

  ahead = ahead_of(parts, Counted)
  assert_same(from_the_start(parts, ahead), expected)
  assert len(begun) == ITERATIONS - 1, "the last iteration begins no batch"
  assert ahead._pool._shutdown


@pytest.mark.slow
def test_a_restarted_run_samples_the_lost_batch_again(case, tmp_path):
  parts, expected = case
  start = start_of(parts)
  with ahead_of(parts) as ahead:
    go_on(parts, first_state(parts.learner, start), start, range(1, 3), ahead)
    assert ahead._pending is not None
  checkpoints = Checkpoints(tmp_path, parts.cfg.checkpoint)
  checkpoints.save(2, expected[1][0])
  _, tree = checkpoints.restore(abstract_saved(parts.learner))
  checkpoints.close()
  with ahead_of(parts) as ahead:
    assert_same(go_on(parts, restored_state(tree, start), start, range(3, ITERATIONS + 1), ahead),
                expected[2:])


class OlderParameters(Ahead):
  """Wrong: every batch is sampled with the parameters of the first one."""

  first = None

  def begin(self, params, step, cursor):
    self.first = self.first or (jax.tree.map(np.asarray, params), step)
    super().begin(*self.first, cursor)


class NextCursor(Ahead):
  """Wrong: sampling begins one task batch too far."""

  def begin(self, params, step, cursor):
    super().begin(params, step, cursor + 1)
    self._cursor = cursor


class UpdatedParameters(Ahead):
  """Wrong: a batch begun late, with the parameters that the updates left."""

  def begin(self, params, step, cursor):
    pass

  def take(self, params, step, cursor):
    return super().take(self.merged(self.newest), self.newest.step, cursor)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [OlderParameters, NextCursor, UpdatedParameters])
def test_wrong_batches_are_told_apart(wrong, case):
  parts, expected = case
  ahead = ahead_of(parts, wrong)
  ahead.merged = parts.learner.merged
  outcomes = from_the_start(parts, ahead,
                            lambda run: setattr(ahead, "newest", jax.device_get(run.state)))
  with pytest.raises(AssertionError):
    assert_same(outcomes, expected)


# --- two meshes


@pytest.mark.slow
def test_devices_that_only_sample_give_the_same_run():
  """Four train and four sample, with overlap; four do both, without."""
  apart = built(8, **{"mesh.rollout": 4, "mesh.fsdp": 2})
  train = set(apart.learner.mesh.devices.flat)
  rollout = set(apart.sampler.rollout_mesh.devices.flat)
  assert len(train) == len(rollout) == 4 and not train & rollout
  there = jax.tree.leaves(apart.sampler.prepare(start_of(apart).params))
  assert all(leaf.sharding.device_set == rollout for leaf in there)
  outcomes = from_the_start(apart, ahead_of(apart))
  assert_same(outcomes, from_the_start(apart))
  together = from_the_start(built(4, **{"mesh.fsdp": 2, "updates.overlap": False}))
  for (tree, _, rows, _), (tree_, _, rows_, _) in zip(outcomes, together, strict=True):
    assert [row["tokens"].tolist() for row in rows] == [row["tokens"].tolist() for row in rows_]
    assert [row["policy_step"] for row in rows] == [row["policy_step"] for row in rows_]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
                 tree["train"].params, tree_["train"].params)


@pytest.mark.parametrize("devices, overrides, texts", [
    (1, {"updates.staleness": 0},
     ["updates.overlap = True", "updates.staleness = 0", "Fix: updates.staleness > 0"]),
    (4, {}, ["updates.overlap = True on 4 devices", "updates.overlap=False", "mesh.rollout"]),
    (1, {"mesh.rollout": 1}, ["mesh.rollout = 1", "none of the 1 devices", "mesh.rollout=0"]),
    (4, {"mesh.rollout": 3}, ["rows of an iteration = 16", "mesh.rollout = 3", "multiple of 3"]),
    (4, {"mesh.rollout": 2, "rollout.slots": 7}, ["rollout.slots = 7", "mesh.rollout = 2"]),
    (4, {"mesh.rollout": 2, "mesh.data": 4},
     ["mesh.data = 4", "there are 2 beside mesh.rollout = 2", "be 2"]),
    (4, {**SHARED, "mesh.rollout": 2},
     ["rollout.shared_prefix = True on 2 devices", "rollout.shared_prefix=False"]),
    (4, {**SHARED, "updates.overlap": False},
     ["rollout.shared_prefix = True on 4 devices that sample"]),
])
def test_refused_with_the_fix(devices, overrides, texts):
  with pytest.raises(ConfigError) as error:
    built(devices, **overrides)
  for text in texts:
    assert text in str(error.value)


@pytest.mark.parametrize("overrides", [{"mesh.rollout": 2}, {"updates.overlap": False}])
def test_a_shared_prefix_that_was_refused_can_be_switched_off(overrides):
  parts = built(4, **SHARED | overrides | {"rollout.shared_prefix": False})
  assert parts.sampler.rollout_mesh.size == overrides.get("mesh.rollout", 4)


def test_several_processes_are_refused(monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with pytest.raises(ConfigError, match=r"mesh\.rollout = 4 with 2 processes"):
    built(8, **{"mesh.rollout": 4})


@pytest.mark.parametrize("devices, left", [(8, 4), (4, 4), (1, 1)])
def test_a_run_is_read_on_the_devices_that_train_or_on_all_there_are(devices, left, tmp_path):
  """Reading samples nothing ahead: no rule of overlap stands in its way."""
  workdir.claim(tmp_path, to_dict(built(8, **{"mesh.rollout": 4}).cfg))
  parts = setup.build(*saved.read_config(tmp_path, jax.devices()[:devices]))
  assert parts.learner.mesh.size == left and not parts.cfg.updates.overlap
  assert parts.sampler.rollout_mesh is parts.learner.mesh


# --- the thread, with a sampler and a task made of tables

def settings(enabled=False, sampler=None, **options):
  """(config, task, sampler); dynamic sampling if `enabled`."""
  cfg = test_rollout_batch.config(enabled, **options)
  return cfg, test_rollout_batch.TableTask(), sampler or test_rollout_batch.sampler()


class InTheCallersThread(Ahead):
  """Wrong: nothing overlaps."""

  def begin(self, params, step, cursor):
    batch = sample_batch(self._source, params, step, cursor)
    self._pending, self._cursor = types.SimpleNamespace(result=lambda: batch), cursor


def overlapped(kind, seconds):
  """A batch whose verification waits at most `seconds` for its caller to go on, or raises."""
  cfg, task, sampler = settings()
  gone_on, verify = threading.Event(), task.rewards

  def rewards(problems, completions):
    if not gone_on.wait(seconds):
      raise TimeoutError("the caller did not go on")
    return verify(problems, completions)

  task.rewards = rewards
  with kind(make_source(cfg, task, sampler)) as ahead:
    ahead.begin(None, 11, 1)
    gone_on.set()
    return ahead.take(None, 11, 1)


def test_verification_runs_beside_the_caller():
  batch = overlapped(Ahead, 300.0)
  expected = sample_batch(make_source(*settings()), None, 11, 1)
  jax.tree.map(np.testing.assert_array_equal, batch.host, expected.host)
  np.testing.assert_array_equal(batch.verdicts.rewards, expected.verdicts.rewards)
  assert batch.cursor == expected.cursor == 2
  assert set(batch.metrics) == {*expected.metrics, "time/waited"}
  with pytest.raises(TimeoutError):
    overlapped(InTheCallersThread, 0.05)


def test_one_program_is_enqueued_before_the_caller_goes_on():
  order = []

  def sample(*arguments):
    threading.Event().wait(0.05)
    order.append("sampled")
    return test_rollout_batch.table_sample(*arguments)

  with Ahead(make_source(*settings(sampler=test_rollout_batch.sampler(sample)))) as ahead:
    ahead.begin(None, 0, 1)
    order.append("went on")
    ahead.take(None, 0, 1)
  assert order == ["sampled", "went on"]


@pytest.mark.parametrize("enabled", [True, False], ids=["several batches", "one batch"])
def test_what_sampling_raises_ends_the_iteration_that_takes_the_batch(enabled):
  failing = None if enabled else test_rollout_batch.sampler(lambda *_: 1 / 0)
  parts = settings(enabled, failing, max_draws=2)
  with pytest.raises((DriedUpError, ZeroDivisionError)) as expected:
    sample_batch(make_source(*parts), None, 0, 1)
  with Ahead(make_source(*parts)) as ahead:
    ahead.begin(None, 0, 1)
    with pytest.raises(type(expected.value)) as error:
      ahead.take(None, 0, 1)
  assert str(error.value) == str(expected.value)


def test_at_most_one_batch_of_one_run_is_pending():
  with Ahead(make_source(*settings())) as ahead:
    ahead.begin(None, 0, 1)
    with pytest.raises(ValueError, match="task batch 1 is pending"):
      ahead.begin(None, 0, 2)
    with pytest.raises(ValueError, match="begins at task batch 1, batch 3 was asked for"):
      ahead.take(None, 0, 3)
    assert ahead.take(None, 0, 1).cursor == 2
    assert ahead.take(None, 0, 1).cursor == 2, "what is not pending is sampled at once"
