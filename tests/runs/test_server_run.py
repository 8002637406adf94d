"""Whole runs whose rollouts a server samples: nothing is lost when it dies, and overlap is free."""

from pathlib import Path

import command
import pytest
import tiny
from server_process import Server


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
  command.wait_for(lambda: len(command.metrics_lines(workdir)) >= lines, process)
  server.kill()
  go_on.touch()


def content(workdir: Path):
  lines = [{name: value for name, value in line.items()
            if not name.startswith("time/") and "peak" not in name}
           for line in command.metrics_lines(workdir)]
  return lines, [path.read_text() for path in command.rollout_files(workdir)]


@pytest.fixture(scope="module")
def full_run(server, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("server") / "whole"
  command.succeed(start(workdir, server))
  return workdir


@pytest.mark.slow
def test_a_run_without_its_server_ends_and_goes_on_later(server, full_run, tmp_path):
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
  assert content(workdir) == content(full_run)


@pytest.mark.nightly
def test_sampling_ahead_changes_nothing(server, tmp_path):
  old = "updates.staleness=1"
  command.succeed(start(tmp_path / "after", server, old))
  command.succeed(start(tmp_path / "ahead", server, old, "updates.overlap=True"))
  (after, rows), (ahead, rows_ahead) = content(tmp_path / "after"), content(tmp_path / "ahead")
  assert rows == rows_ahead and after == ahead
