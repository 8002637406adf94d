"""SIGKILL of the sandbox's processes and of the trainer: no result changes, no process stays."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from processes import HOLD, children, gone, programs, until, when_it_runs

from jaxrl_llm.rollouts.tools import PythonSandbox, ToolResult
from jaxrl_llm.sandbox import isolation
from jaxrl_llm.sandbox.sandbox_process import GoneError


@pytest.fixture(scope="module")
def sandbox():
  with PythonSandbox(workers=1, timeout=100.0) as pool:
    yield pool


@pytest.mark.parametrize("which", ["supervisor", "server"])
def test_between_calls(sandbox, which):
  assert sandbox.run("print(1)") == ToolResult("ok", "1\n")
  gc.collect()  # of what earlier tests left open
  handles = len(os.listdir("/proc/self/fd"))
  supervisor = sandbox.pids()[0]
  below = [supervisor, *children(supervisor)]
  os.kill(below[0 if which == "supervisor" else 1], signal.SIGKILL)
  gone(below[1:2])
  assert sandbox.run("print(2)") == ToolResult("ok", "2\n")
  assert gone(below) and sandbox.pids() != [supervisor]
  assert len(os.listdir("/proc/self/fd")) == handles


def test_a_program_killed_from_outside_runs_again(sandbox, monkeypatch):
  kills = []

  def kill(worker):
    kills.extend(programs(worker.process.pid))
    os.kill(kills[-1], signal.SIGKILL)

  when_it_runs(monkeypatch, kill)
  assert sandbox.run(f"{HOLD}\nprint('whole')") == ToolResult("ok", "whole\n")
  assert len(kills) == 1
  program = "import os, signal\nprint('mine', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
  assert sandbox.run(program) == ToolResult("killed", "mine\nkilled by SIGKILL")

  def once(self, code):
    return self._ask(self._workers[0], code.encode())

  monkeypatch.setattr(PythonSandbox, "run", once)
  assert sandbox.run(f"{HOLD}\nprint('a')").status == "killed", "asked once, it would pass too"


PROGRAM = """import os, time
os.mkdir("kept")
if os.fork() == 0: os.setsid()
time.sleep(600)"""
TRAINER = """from hostile_driver import PythonSandbox
s = PythonSandbox(workers=2, timeout=600.0, without={without})
print(*s.pids(), flush=True)
s.run_many([{program!r}] * 2)"""


@pytest.mark.parametrize("without", [(), isolation.NAMES], ids=["isolated", "not isolated"])
def test_a_killed_trainer_leaves_no_process_and_no_folder(without, tmp_path):
  """Two programs run that have each made a folder and started a process in a session of its own."""
  code = TRAINER.format(without=tuple(without), program=PROGRAM)
  trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                             cwd=Path(__file__).parent,
                             env={**os.environ, "TMPDIR": str(tmp_path)})
  supervisors = [int(pid) for pid in trainer.stdout.readline().split()]
  servers = [pid for supervisor in supervisors for pid in children(supervisor)]

  def parents_of_processes():
    groups = [[p for p in children(server) if children(p)] for server in servers]
    return [p for pids in groups for p in pids] if all(groups) else []

  programs = until(parents_of_processes)
  below = [*supervisors, *servers, *programs, *(pid for p in programs for pid in children(p))]
  assert len(supervisors) == 2 and len(below) == 8
  if without:
    assert len(list(tmp_path.iterdir())) == 2
  trainer.kill()
  trainer.wait()
  trainer.stdout.close()
  assert gone(below)
  assert list(tmp_path.iterdir()) == []


OK, KILLED, GONE = ToolResult("ok", "1\n"), ToolResult("killed", "killed by SIGKILL"), "gone"
UNAVAILABLE = ToolResult("unavailable", "the sandbox is unavailable")


@pytest.mark.parametrize(("met", "result", "replaced"), [
    ([KILLED, GONE, OK], OK, 1),
    ([GONE, KILLED, OK], OK, 1),
    ([GONE, KILLED, KILLED], KILLED, 1),
    ([KILLED, GONE, KILLED], KILLED, 1),
    ([KILLED, GONE, GONE], UNAVAILABLE, 2),
    ([GONE, KILLED, GONE], UNAVAILABLE, 2),
    ([GONE, GONE], UNAVAILABLE, 2),
    ([KILLED, KILLED], KILLED, 0),
])
def test_a_killed_program_and_a_worker_that_died_are_counted_apart(sandbox, monkeypatch, met,
                                                                   result, replaced):
  """Each kind is met twice before it counts; a result ends the asking."""
  left, replace = list(met), mock.Mock()

  def ask(self, worker, data):
    reply = left.pop(0)
    if reply == GONE:
      raise GoneError("of tests")
    return reply

  monkeypatch.setattr(PythonSandbox, "_ask", ask)
  monkeypatch.setattr(PythonSandbox, "_replace", replace)
  assert sandbox.run("print(1)") == result
  assert left == [] and replace.call_count == replaced
