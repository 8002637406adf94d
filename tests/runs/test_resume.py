"""A killed run goes on as if it never was; torn files, a full disk, other devices."""

import os
import random
import shutil
import signal
import time

import command
import jax
import numpy as np
import programs
import pytest
import tiny

pytestmark = pytest.mark.slow

ROUNDING = 1e-5
FOUR = {"XLA_FLAGS": f"{programs.FLAGS} --xla_force_host_platform_device_count=4"}


@pytest.fixture(scope="module")
def full_run(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("resume") / "whole"
  command.succeed(command.start(workdir, interpreter=True))
  return workdir


@pytest.fixture(scope="module")
def second_runs(full_run):
  """Folders of runs that were killed twice, lost a checkpoint, were asked for more iterations."""
  torn = full_run.parent / "torn"
  shutil.copytree(full_run, torn)
  damage_by_truncation(torn / "checkpoints" / str(tiny.ITERATIONS))
  process = command.start(torn)
  try:
    killed = killed_twice(full_run.parent / "killed")
    grown = grown_twice(full_run.parent / "grown")
  finally:
    done = command.finish(process)
  return {"killed": killed, "torn": torn, "torn_result": done, "grown": grown}


def grown_twice(workdir):
  """A run of half the iterations that is then asked for all of them, and saves more often."""
  command.succeed(command.start(workdir, f"iterations={tiny.ITERATIONS // 2}"))
  assert len(command.metrics_lines(workdir)) == 1 + tiny.ITERATIONS // 2
  command.succeed(command.start(workdir, "checkpoint.every=1"))
  return workdir


def killed_twice(workdir):
  """Kills the command before the first metrics line and after a random one; then lets it end."""
  seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(2**31)))
  rng = random.Random(seed)
  print(f"to choose the same moments again: KILL_SEED={seed}")
  kill_when(command.start(workdir, environment=command.hold(0)),
            (workdir / "config.json").exists, rng.uniform(0, 1))
  lines = rng.randint(3, tiny.ITERATIONS - 1)
  reached = lambda: len(command.metrics_lines(workdir)) > lines
  kill_when(command.start(workdir, environment=command.hold(lines + 1)), reached,
            rng.uniform(0, 0.1))
  # The line of iteration n is written after any checkpoint of an iteration before n.
  saved = (lines - 1) // 2 * 2
  before = [path.stat().st_mtime_ns for path in command.rollout_files(workdir)[:saved]]
  command.succeed(command.start(workdir))
  after = [path.stat().st_mtime_ns for path in command.rollout_files(workdir)[:saved]]
  assert saved >= 2 and before == after, "the run began again, not from its checkpoint"
  return workdir


def kill_when(process, ready, delay: float) -> None:
  """Kills a run some seconds after `ready()`; it must be one that waits then (command.hold)."""
  try:
    command.wait_for(ready, process)
    time.sleep(delay)
  finally:
    process.kill()
    process.communicate()
  assert process.returncode == -signal.SIGKILL, "the run had ended before it was killed"


def killed_at(workdir, lines, *flags, config=command.TINY):
  """Makes a whole run that was killed when it had written so many lines."""
  kill_when(command.start(workdir, *flags, config=config, environment=command.hold(lines)),
            lambda: len(command.metrics_lines(workdir)) >= lines, 0.05)
  command.succeed(command.start(workdir, *flags, config=config))


def assert_same_run(workdir, full_run, iterations=tiny.ITERATIONS):
  """Metrics but for times, rollouts, and all that the last checkpoint holds, to the bit."""
  assert [line["iteration"] for line in command.metrics_lines(workdir)
         ] == list(range(iterations + 1))
  assert command.timeless(workdir) == command.timeless(full_run)
  assert command.rollout_contents(workdir) == command.rollout_contents(full_run)
  (iteration, tree), (last, expected) = command.last_tree(workdir), command.last_tree(full_run)
  assert iteration == last == iterations
  jax.tree.map(np.testing.assert_array_equal, tree, expected)


def test_every_iteration_of_the_run_changes_it(full_run):
  """Otherwise the equalities below would hold for a run that forgets its state."""
  lines = command.metrics_lines(full_run)[1:]
  assert all(line["optimizer/grad_norm"] > 0 for line in lines)
  assert len({line["policy/entropy"] for line in lines}) == tiny.ITERATIONS
  _, state = command.last_state(full_run)
  assert state.step == 2 * tiny.ITERATIONS


def test_run_killed_twice_equals_the_whole_run(second_runs, full_run):
  assert_same_run(second_runs["killed"], full_run)


def test_a_run_that_grows_equals_the_whole_run(second_runs, full_run):
  assert_same_run(second_runs["grown"], full_run)


def test_torn_newest_checkpoint_gives_way_to_the_one_before(second_runs, full_run):
  result = second_runs["torn_result"]
  assert result.returncode == 0, result.stderr
  assert f"checkpoints/{tiny.ITERATIONS} is damaged" in result.stderr
  assert_same_run(second_runs["torn"], full_run)
  redone = [
      torn.stat().st_mtime_ns != first.stat().st_mtime_ns for torn, first in zip(
          command.rollout_files(second_runs["torn"]), command.rollout_files(full_run), strict=True)
  ]
  assert redone == [False] * (tiny.ITERATIONS - 2) + [True] * 2


def damage_by_truncation(checkpoint):
  for path in checkpoint.rglob("*"):
    if path.is_file():
      os.truncate(path, path.stat().st_size // 2)


# --- torn files, a full disk, other devices


@pytest.fixture
def copy(full_run, tmp_path):
  return shutil.copytree(full_run, tmp_path / "copy")


def contents(workdir):
  return [(workdir / "metrics.jsonl").read_bytes(), *command.rollout_contents(workdir).values()]


def refused(process):
  """The one line that the command ended with; Orbax's own text in it may say "error:", too."""
  done = command.finish(process)
  assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
  assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1, done.stderr
  last = done.stderr.splitlines()[-1]
  assert last.startswith("error: ") and "Fix: " in last, done.stderr
  return last


def test_where_nothing_can_be_read_nothing_is_cut(copy):
  for path in (copy / "checkpoints").iterdir():
    shutil.rmtree(path)
    path.mkdir()
  before = contents(copy)
  assert "none of the checkpoints [6, 4] can be read" in refused(command.start(copy))
  assert contents(copy) == before


def test_a_full_disk_is_one_line_and_the_run_goes_on(copy, full_run):
  """A limit of file sizes, the nearest to a full disk that needs no rights."""
  newest = copy / "checkpoints" / str(tiny.ITERATIONS)
  shutil.rmtree(newest)
  size = (copy / "metrics.jsonl").stat().st_size
  error = refused(command.start(copy, environment={"FILE_BYTES": str(size // 2)}))
  assert "File too large" in error and "Fix: free space" in error
  command.succeed(command.start(copy))
  assert command.timeless(copy) == command.timeless(full_run)


def test_other_devices_and_micro_batches_go_on_to_rounding(copy, full_run):
  newest = copy / "checkpoints" / str(tiny.ITERATIONS)
  shutil.rmtree(newest)
  done = command.succeed(command.start(copy, "updates.micro_batches=2", "mesh.data=4",
                                       environment=FOUR))
  assert "4 x cpu, before 1 x cpu" in done.stderr
  assert "updates.micro_batches: 1 in the workdir, 2 now" in done.stderr
  lines, expected = command.timeless(copy), command.timeless(full_run)
  for ours, theirs in zip(lines, expected, strict=True):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
      np.testing.assert_allclose(ours[name], value, rtol=ROUNDING, atol=ROUNDING, err_msg=name)
  differ = [line != other for line, other in zip(lines, expected, strict=True)]
  assert any(differ[-2:]) and not any(differ[:-2])
