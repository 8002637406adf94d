"""Whole runs whose rollouts a server samples: nothing is lost when it dies, and overlap is free."""

import json
import socket
import time
from pathlib import Path

import command
import numpy as np
import pytest
import tiny
from server_process import Server

ROWS = 64  # of an iteration


@pytest.fixture(scope="module")
def server():
  with Server() as process:
    yield process


def start(workdir: Path, server: Server, *overrides: str, **options):
  return command.start(workdir, f"server.url={server.url}",
                       f"server.folder={workdir.parent / 'weights'}", *overrides,
                       config="tests/runs/tiny.py:grpo", **options)


def kill_under_way(server: Server, process, workdir: Path, lines: int, go_on: Path) -> None:
  """Kills the server when the run has written so many lines, and waits before the next one."""
  end = time.monotonic() + 600
  while len(command.metrics_lines(workdir)) < lines:
    assert process.poll() is None and time.monotonic() < end, process.communicate()[1]
    time.sleep(0.005)
  server.kill()
  go_on.touch()


def knock(server: Server) -> None:
  """Returns when somebody has asked at the port of the server that is not there."""
  with socket.create_server(("127.0.0.1", server.port)) as door:
    door.settimeout(600)
    door.accept()[0].close()


def content(workdir: Path):
  """Metrics without times, and rollouts."""
  lines = [{name: value for name, value in line.items()
            if not name.startswith("time/") and "peak" not in name}
           for line in command.metrics_lines(workdir)]
  return lines, [path.read_text() for path in command.rollout_files(workdir)]


def row_ids(workdir: Path) -> list[int]:
  return [json.loads(line)["row_id"] for text in content(workdir)[1]
          for line in text.splitlines()]


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("server") / "whole"
  command.succeed(start(workdir, server))
  return workdir


@pytest.mark.nightly
def test_the_rows_are_those_of_the_policy(whole):
  ids = row_ids(whole)
  assert ids == list(range(ids[0], ids[0] + tiny.ITERATIONS * ROWS))
  for line in command.metrics_lines(whole)[1:]:
    assert line["mismatch/absolute"] < 1e-5 and line["server/failed_groups"] == 0
  assert len({line["policy/entropy"] for line in command.metrics_lines(whole)[1:]}) > 1


@pytest.mark.nightly
def test_a_server_that_dies_costs_time_only(server, whole, tmp_path):
  """It is killed while the run is under way, and comes back without weights."""
  workdir = tmp_path / "run"
  process = start(workdir, server, environment=command.hold(3, tmp_path / "go on"))
  kill_under_way(server, process, workdir, 3, tmp_path / "go on")
  knock(server)
  assert process.poll() is None, process.communicate()
  server.start()
  done = command.succeed(process)
  assert "does not answer" in done.stderr and "answers again" in done.stderr
  assert row_ids(workdir) == row_ids(whole)
  assert all(np.isfinite(list(line.values())).all() for line in command.metrics_lines(workdir))
  assert max(line["mismatch/absolute"] for line in command.metrics_lines(workdir)[1:]) < 1e-5


@pytest.mark.slow
def test_a_run_without_its_server_ends_and_goes_on_later(server, whole, tmp_path):
  workdir = tmp_path / "run"
  process = start(workdir, server, "server.patience=0.5",
                  environment=command.hold(4, tmp_path / "go on"))
  kill_under_way(server, process, workdir, 4, tmp_path / "go on")
  try:
    error = command.refuse(process)
  finally:
    server.start()
  assert f"server.url = '{server.url}' did not answer" in error and "same command again" in error
  assert 0 < len(command.metrics_lines(workdir)) <= tiny.ITERATIONS
  command.succeed(start(workdir, server, "server.patience=300"))
  assert content(workdir) == content(whole)


@pytest.mark.nightly
def test_sampling_ahead_changes_nothing(server, tmp_path):
  old = "updates.staleness=1"
  command.succeed(start(tmp_path / "after", server, old))
  command.succeed(start(tmp_path / "ahead", server, old, "updates.overlap=True"))
  (after, rows), (ahead, rows_ahead) = content(tmp_path / "after"), content(tmp_path / "ahead")
  assert rows == rows_ahead and after == ahead
