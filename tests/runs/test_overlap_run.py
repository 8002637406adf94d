"""Through the command: sampling ahead, a kill and a new start change nothing that a run leaves."""

import command
import pytest
import tiny
from test_resume import assert_same_run, kill_when

pytestmark = pytest.mark.slow

STALE = "updates.staleness=1"


def test_killed_run_that_draws_ahead_equals_the_whole_run_that_does_not(tmp_path):
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  command.succeed(command.start(whole, STALE))
  begin = lambda **more: command.start(killed, STALE, "updates.overlap=True", **more)
  # After the line of iteration 3 the newest checkpoint is that of 2 or 4; a batch is pending, or
  # about to be.
  kill_when(begin(environment=command.hold(4)),
            lambda: len(command.metrics_lines(killed)) > 3, 0.0)
  kept = command.rollout_files(killed)[:2]
  before = [path.stat().st_mtime_ns for path in kept]
  command.succeed(begin())
  assert [path.stat().st_mtime_ns for path in kept
         ] == before, "the run began again instead of going on"
  assert_same_run(killed, whole)
  waited = [line["time/waited"] for line in command.metrics_lines(killed)[1:]]
  assert len(waited) == tiny.ITERATIONS and min(waited) >= 0
  assert all("time/waited" not in line for line in command.metrics_lines(whole))
