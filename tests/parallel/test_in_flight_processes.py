"""Completions under new weights in two processes: none is lost or doubled, also by kills."""

import signal
import time
from pathlib import Path

import command
import numpy as np
import process_group as group
import pytest
import small_runs
from test_faults import until

from experiments.report.run_folder import read_run
from jaxrl_llm.parallel import processes
from jaxrl_llm.runs import in_flight

EACH = ("checkpoint.every=1", "evaluation.every=2")
STILL = ("optimizer.learning_rate=1e-20",)  # weights that do not move
ROWS = 64


def test_each_process_begins_its_own_rows(monkeypatch):
  def of_both(rows):
    out = []
    for index in (0, 1):
      monkeypatch.setattr(processes, "share", lambda count, i=index: slice(
          i * count // 2, (i + 1) * count // 2))
      out.append(rows(3, 8))
    return np.concatenate(out)

  np.testing.assert_array_equal(of_both(in_flight.row_ids), 24 + np.arange(8))
  wrong = of_both(lambda cursor, rows: cursor * rows + np.arange(rows)[:rows // 2])
  assert len(set(wrong)) < 8, "both begin the rows of the first"


def rows_of(workdir: Path) -> dict[int, dict]:
  run = read_run(workdir)
  rows = [row for number in run.rollout_iterations() for row in run.rollouts(number)]
  by_id = {row["row_id"]: row for row in rows}
  assert len(by_id) == len(rows) == small_runs.ITERATIONS * ROWS, "a row was trained on twice"
  return by_id


@pytest.mark.processes
def test_a_row_has_the_tokens_of_one_process(tmp_path):
  """Where the weights do not move, so that it does not matter which batch a row is in."""
  for count, devices in ((1, 8), (2, 4)):
    group.train(count, devices, tmp_path / str(count), "in_flight", *STILL).succeed()
  one, two = rows_of(tmp_path / "1"), rows_of(tmp_path / "2")
  common = one.keys() & two.keys()
  assert len(common) > small_runs.ITERATIONS * ROWS / 2
  for row in common:
    np.testing.assert_array_equal(one[row]["tokens"], two[row]["tokens"], str(row))
    np.testing.assert_allclose(one[row]["behavior_log_probs"], two[row]["behavior_log_probs"],
                               atol=5e-5)
  other = min(common)
  assert any(not np.array_equal(one[row]["tokens"], two[other]["tokens"]) for row in common)
  lines = command.metrics_lines(tmp_path / "2")[1:]
  assert max(line["in_flight/versions_max"] for line in lines) >= 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("in_flight") / "run"
  group.train(2, 4, workdir, "in_flight", *EACH).succeed()
  return workdir


@pytest.mark.processes
@pytest.mark.parametrize("kills", [[(1, 3)], [(0, 2), (1, 3), (0, 5)]])
def test_kills_of_two_processes_change_nothing(kills, undisturbed, tmp_path):
  workdir = tmp_path / "run"
  for victim, count in kills:
    run = group.train(2, 4, workdir, "in_flight", *EACH, environment=command.hold(count))
    until(run, workdir, count)
    time.sleep(0.1)
    run.processes[victim].send_signal(signal.SIGKILL)
    statuses = run.wait(200.0)
    assert statuses[victim] == -signal.SIGKILL and statuses[1 - victim] not in (0, None)
    assert f"error: process {victim} of 2" in run.text(1 - victim), run.text(1 - victim)
  group.train(2, 4, workdir, "in_flight", *EACH).succeed()
  assert command.timeless(workdir) == command.timeless(undisturbed)
  assert command.rollout_contents(workdir) == command.rollout_contents(undisturbed)
  assert min(line["in_flight/unfinished_tokens"] for line in command.metrics_lines(workdir)[1:]) > 0


@pytest.mark.processes
def test_another_number_of_processes_goes_on_with_them(undisturbed, tmp_path):
  workdir = tmp_path / "run"
  run = group.train(2, 4, workdir, "in_flight", *EACH, environment=command.hold(3))
  until(run, workdir, 3)
  run.processes[1].send_signal(signal.SIGKILL)
  run.wait(200.0)
  group.train(1, 8, workdir, "in_flight", *EACH).succeed()
  rows_of(workdir)
