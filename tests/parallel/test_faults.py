"""A dead process ends the others; the command goes on exactly, with any number of processes."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import command
import jax
import numpy as np
import process_group as group
import pytest
import small_runs

from experiments.families import checkpoints as hf_checkpoints
from experiments.report.run_folder import read_run
from jaxrl_llm.models import hf

KILLS = int(os.environ.get("JAXRL_LLM_TEST_KILLS", "2"))
EACH = ("checkpoint.every=1", "evaluation.every=2")
hf_checkpoints.quiet()


def until(run: group.Group, workdir: Path, count: int) -> None:
  """Waits until the processes have met, and the run has written so many lines."""
  end = time.monotonic() + 600
  while ("2 processes with 8 devices" not in run.text(0)
         or len(command.metrics_lines(workdir)) < count):
    assert time.monotonic() < end and run.processes[0].poll() is None, run.text(0)
    time.sleep(0.05)


@pytest.fixture(scope="module")
def full_run(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("whole") / "run"
  group.train(2, 4, workdir, "plain", *EACH).succeed()
  return workdir


@pytest.mark.parametrize("seed", [
    pytest.param(seed, marks=pytest.mark.processes if seed else pytest.mark.slow)
    for seed in range(KILLS)])
def test_a_killed_process_ends_all_and_the_restart_goes_on_exactly(seed, full_run, tmp_path):
  chance, victim = random.Random(seed), seed % 2
  run = group.train(2, 4, tmp_path / "run", "plain", *EACH,
                    environment=command.hold(small_runs.ITERATIONS))
  until(run, tmp_path / "run", chance.randrange(0, 4))
  time.sleep(chance.uniform(0.0, 1.5))
  run.processes[victim].send_signal(signal.SIGKILL)
  statuses = run.wait(200.0)  # JAX itself would take minutes
  assert statuses[victim] == -signal.SIGKILL
  assert statuses[1 - victim] not in (0, None)
  assert f"error: process {victim} of 2" in run.text(1 - victim), run.text(1 - victim)
  group.train(2, 4, tmp_path / "run", "plain", *EACH).succeed()
  assert command.timeless(tmp_path / "run") == command.timeless(full_run)
  assert command.rollout_contents(tmp_path / "run") == command.rollout_contents(full_run)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
  """(workdir, statuses, text) of a run of two processes that saved only as one got SIGTERM."""
  workdir = tmp_path_factory.mktemp("stopped") / "run"
  go_on = workdir.with_name("go on")
  run = group.train(2, 4, workdir, "plain", "checkpoint.every=5", "evaluation.every=5",
                    environment=command.hold(2, go_on))
  end = time.monotonic() + 600
  while len(list(workdir.glob("rollouts/*.jsonl"))) < 3:
    assert time.monotonic() < end and run.processes[0].poll() is None, run.text(0)
    time.sleep(0.01)
  run.processes[1].send_signal(signal.SIGTERM)
  go_on.touch()
  return workdir, run.wait(300.0), run.text(0)


@pytest.mark.slow
def test_sigterm_saves_first_in_all_processes(stopped):
  workdir, statuses, text = stopped
  assert statuses == [143, 143], text
  saved = command.checkpoint_iterations(workdir)
  last = command.metrics_lines(workdir)[-1]["iteration"]
  assert saved == [0, last] and 1 < last < small_runs.ITERATIONS
  assert "interrupted by Terminated" in (workdir / "report.html").read_text()


@pytest.mark.parametrize("count, devices", [
    pytest.param(1, 1, marks=pytest.mark.slow),
    *(pytest.param(*place, marks=pytest.mark.processes)
      for place in ((1, 2), (1, 4), (1, 8), (4, 2)))])
def test_other_processes_and_devices_go_on(count, devices, stopped, full_run, tmp_path):
  workdir = shutil.copytree(stopped[0], tmp_path / "run")
  group.train(count, devices, workdir, "plain", "checkpoint.every=5",
              "evaluation.every=5").succeed()
  losses, wanted = (read_run(folder).series("loss/total")[1] for folder in (workdir, full_run))
  np.testing.assert_allclose(losses, wanted, atol=1e-6)
  ids = [[row["row_id"] for row in read_run(folder).rollouts(small_runs.ITERATIONS)]
         for folder in (workdir, full_run)]
  assert ids[0] == ids[1] and len(set(ids[0])) == len(ids[0])


@pytest.mark.slow
def test_two_processes_export_what_one_does(full_run, tmp_path):
  for count, devices in ((1, 1), (2, 4)):
    group.Group(count, devices, f"--workdir={full_run}", f"--out={tmp_path / str(count)}",
                script="export").succeed()
  one, two = (hf.load_pretrained(tmp_path / str(count))[1] for count in (1, 2))
  jax.tree.map(np.testing.assert_array_equal, one, two)
