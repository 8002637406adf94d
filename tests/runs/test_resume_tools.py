"""A run with tools, killed while a program of the policy runs: started again it is the whole run,
and nothing stays.
"""

import signal
import time
from pathlib import Path

import command
import pytest
import tiny_tools
from test_resume import assert_same_run

pytestmark = pytest.mark.slow

CONFIG = "tests/runs/tiny_tools.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def whole(folder):
  command.succeed(command.start(folder / "whole", config=CONFIG))
  return folder / "whole"


def stalled(folder, call: int) -> None:
  """Runs until its `call`-th program is in flight, and kills the command there."""
  flag, temporary = folder / f"stalled_{call}", folder / f"temporary_{call}"
  temporary.mkdir()
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("STALL", f"{flag}:{call}")
    patch.setenv("TMPDIR", str(temporary))
    process = command.start(folder / "killed", config=CONFIG)
  end = time.monotonic() + 600
  try:
    while not flag.exists() or not flag.read_text():
      assert process.poll() is None and time.monotonic() < end, process.communicate()[1]
      time.sleep(0.01)
    assert until(lambda: len(descendants(process.pid)) >= 5), (
        "supervisor and server of two workers, and the program")
    below = descendants(process.pid)
    assert {int(pid) for pid in flag.read_text().split()} < set(below)
  finally:
    process.kill()
    process.communicate()
  assert process.returncode == -signal.SIGKILL
  assert until(lambda: not any(alive(pid) for pid in below)), "a process outlived the trainer"
  assert not [
      path.name for path in temporary.iterdir() if "sandbox" in path.name or "gone" in path.name
  ]


def descendants(root: int) -> list[int]:
  parent = {}
  for path in Path("/proc").glob("[0-9]*/stat"):
    try:
      parent[int(path.parent.name)] = int(path.read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
      continue
  found, front = [], {root}
  while front:
    front = {pid for pid, above in parent.items() if above in front}
    found += front
  return found


def alive(pid: int) -> bool:
  return Path(f"/proc/{pid}").exists()


def until(true) -> bool:
  end = time.monotonic() + 60
  while not true() and time.monotonic() < end:
    time.sleep(0.02)
  return true()


@pytest.fixture(scope="module")
def killed(whole, folder):
  """Killed in the first iterations, then started again."""
  stalled(folder, 30)
  assert 0 < len(command.metrics_lines(folder / "killed")) < 1 + tiny_tools.ITERATIONS
  command.succeed(command.start(folder / "killed", config=CONFIG))
  return folder / "killed"


def test_the_run_calls_its_tool_and_learns(whole):
  lines = command.metrics_lines(whole)[1:]
  assert all(line["tool/tokens"] > 20 and line["optimizer/grad_norm"] > 0 for line in lines)
  assert len({line["policy/entropy"] for line in lines}) == tiny_tools.ITERATIONS


def test_killed_run_equals_the_whole_run(killed, whole):
  assert_same_run(killed, whole, tiny_tools.ITERATIONS)
