"""Processes of a sandbox, and what is done to them at a moment that a test can be sure of."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from jaxrl_llm.sandbox.sandbox_process import WorkerProcess

HOLD = "import time; time.sleep(90)"  # at the begin of a program for `when_it_runs`


def children(pid: int) -> list[int]:
  pids = []
  for path in Path("/proc").glob("[0-9]*/stat"):
    try:
      if int(path.read_bytes().rpartition(b")")[2].split()[1]) == pid:
        pids.append(int(path.parent.name))
    except (OSError, IndexError):
      continue
  return pids


def until(condition: Callable, seconds: float = 60.0):
  """Returns the first true value of `condition()`, or its last value if there is none in time."""
  end = time.monotonic() + seconds
  while not (value := condition()) and time.monotonic() < end:
    time.sleep(0.01)
  return value


def gone(pids) -> bool:
  def none_exists():
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)

  return until(none_exists)


def programs(supervisor: int) -> list[int]:
  """Returns the processes of the program that runs now below a supervisor."""
  return [pid for server in children(supervisor) for pid in children(server)]


def when_it_runs(monkeypatch, act: Callable[[WorkerProcess], None]) -> None:
  """Calls `act(worker)` once a program that begins with HOLD runs, which waits for that; when the
  same program is asked for again, it does not wait.
  """
  ask, asked = WorkerProcess.ask, set()

  def held(self, code, seconds):
    hold = HOLD.encode()
    if not code.startswith(hold):
      return ask(self, code, seconds)
    if code in asked:
      return ask(self, code.removeprefix(hold), seconds)
    asked.add(code)

    def wait_and_act():
      if until(lambda: programs(self.process.pid)):
        act(self)

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    try:
      return ask(self, code, seconds)
    finally:
      thread.join()

  monkeypatch.setattr(WorkerProcess, "ask", held)
