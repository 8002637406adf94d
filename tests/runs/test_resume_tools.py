"""A run with tools, killed while a program of the policy runs: started again it is the whole run, and nothing stays."""

import signal
import time
from pathlib import Path

import command
import jax
import numpy as np
import pytest
import tiny_tools

from jaxrl_llm.reporting.reader import read_lines

CONFIG = "tests/runs/tiny_tools.py"
# How rows are scheduled depends on when answers come, and with it these metrics; tokens and parameters do not.
SCHEDULE = ("time/", "rollout/wasted_slots", "rollout/chunks", "rollout/cache_read")
# A row's log-probs are summed in the order of its slots, so that their last bit depends on the schedule as well.
ROUNDING = {"rtol": 1e-4, "atol": 3e-6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def whole(folder):
  command.succeed(command.start(folder / "whole", config=CONFIG, cache=folder / "compiled"))
  return folder / "whole"


def stalled(folder, call: int) -> list[int]:
  """Runs until its `call`-th program is in flight, and kills the command there; the processes that were below it."""
  flag, temporary = folder / f"stalled_{call}", folder / f"temporary_{call}"
  temporary.mkdir()
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("STALL", f"{flag}:{call}")
    patch.setenv("TMPDIR", str(temporary))
    process = command.start(folder / "killed", config=CONFIG, cache=folder / "compiled")
  end = time.monotonic() + 240
  try:
    while not flag.exists() or not flag.read_text():
      assert process.poll() is None and time.monotonic() < end, process.communicate()[1]
      time.sleep(0.01)
    below = descendants(process.pid)
    assert {int(pid) for pid in flag.read_text().split()} < set(below)
  finally:
    process.kill()
    process.communicate()
  assert process.returncode == -signal.SIGKILL
  assert until(lambda: not any(alive(pid) for pid in below)), "a process outlived the trainer"
  assert not [path.name for path in temporary.iterdir() if "sandbox" in path.name or "gone" in path.name]
  return below


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
  end = time.monotonic() + 10
  while not true() and time.monotonic() < end:
    time.sleep(0.02)
  return true()


@pytest.fixture(scope="module")
def killed(whole, folder):
  """Killed in the first iterations, and again after it was started from a checkpoint; then ended."""
  assert len(stalled(folder, 30)) >= 5, "supervisor and server of two workers, and the program"
  before = len(command.metrics_lines(folder / "killed"))
  stalled(folder, 15)
  assert 0 < before < len(command.metrics_lines(folder / "killed")) < 1 + tiny_tools.ITERATIONS
  command.succeed(command.start(folder / "killed", config=CONFIG, cache=folder / "compiled"))
  return folder / "killed"


def test_the_run_calls_its_tool_and_learns(whole):
  lines = command.metrics_lines(whole)[1:]
  assert all(line["tool/tokens"] > 20 and line["optimizer/grad_norm"] > 0 for line in lines)
  assert len({line["policy/entropy"] for line in lines}) == tiny_tools.ITERATIONS


def test_killed_run_equals_the_whole_run(killed, whole):
  (iteration, state), (last, expected) = command.last_state(killed), command.last_state(whole)
  assert iteration == last == tiny_tools.ITERATIONS
  jax.tree.map(np.testing.assert_array_equal, state, expected)
  got, wanted = command.metrics_lines(killed), command.metrics_lines(whole)
  assert [line["iteration"] for line in got] == list(range(tiny_tools.ITERATIONS + 1))
  for line, other in zip(got, wanted, strict=True):
    assert line.keys() == other.keys()
    for key in line:
      if not key.startswith(SCHEDULE):
        np.testing.assert_allclose(float(line[key]), float(other[key]), err_msg=key, **ROUNDING)


def test_rollouts_are_the_same(killed, whole):
  for path, other in zip(command.rollout_files(killed), command.rollout_files(whole), strict=True):
    for row, expected in zip(*(read_lines(p) for p in (path, other)), strict=True):
      for key in row:
        if key.endswith("log_probs"):
          np.testing.assert_allclose(row[key], expected[key], **ROUNDING)
        else:
          assert row[key] == expected[key], key
