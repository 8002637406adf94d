"""Calls of a function on texts of the policy, in processes that a text cannot leave.

Several calls share a process as long as none of them runs its text as code (`call_child.ACTS`); one
that would gets a process to itself, as do all calls after it. A process that ends or is late before
it has answered at all was so by the text that it began with; then the others follow in a new one.
So no text decides about another.
"""

import base64
import collections
import concurrent.futures
import json
import math
import os
import pickle
import secrets
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxrl_llm.sandbox.python_sandbox import PythonSandbox
from jaxrl_llm.sandbox.results import COSTLY, LATE, TIMERS, Fault, ToolResult, is_late

TOGETHER = 16  # calls of one process
WORKERS = max(2, min(8, (os.cpu_count() or 2) // 2))
MEMORY_MB = 1024  # of address space, beside what the function's modules take
WAITING = 10  # of a first try: times the processor time that it may wait for a busy machine
NOT_ASKED = Fault(f"{LATE}: not asked: other texts of the batch took all of its time", False)
# A library's threads would only take processor time from the trainer's, and JAX its devices.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
PACKAGES = ("site-packages", "dist-packages")  # visible, as functions may import more when called
INHERITED = ("HOME", "LD_LIBRARY_PATH")
PACKAGE = Path(__file__).parents[1]
SETUP = """import contextlib, os, sys
with contextlib.suppress(OSError):  # files that modules name by their paths from here
  os.chdir({here!r})
sys.path[:] = {path!r}
sys.path.insert(0, {folder!r})
import call_child
del sys.path[0]
exec({source!r}, vars(call_child))
"""


class IsolatedCalls:
  """A function that is called in the sandbox. Several threads may use one.

  Args:
    source: Python text that defines `target`, the function; it may import installed packages, has
      no network, and runs once in each worker, not for each call.
    cpu: seconds of processor time of one call; the text of a longer one is at fault ("costly").
    wall: seconds of wall-clock time of one call, for what waits; a longer one has no verdict.
    quick: seconds of processor time of a first try. Calls that need more follow after all others,
      so that none of these waits for them. None: there is no such try.
    budget: seconds that the longer tries of one batch may take and not answer, all together; then
      the others are not asked.
    workers: number of processes; changes only the time.
    runs_texts: whether the function may run a text as code, or be made to. If not, such calls share
      processes too, and a system that lacks some isolation is no reason for a warning.

  Raises:
    ConfigError: no worker starts, or the source fails.
  """

  def __init__(self, source: str, *, cpu: float, wall: float, quick: float | None, budget: float,
               workers: int = WORKERS, runs_texts: bool = True):
    self._limits, self._quick, self._budget, self._workers = (cpu, wall), quick, budget, workers
    self._together, self._runs_texts = TOGETHER, runs_texts
    setup = SETUP.format(here=os.getcwd(), path=sys.path, folder=str(Path(__file__).parent),
                         source=source)
    variables = {name: os.environ[name] for name in INHERITED if name in os.environ}
    folders = [path for path in sys.path if Path(path).name in PACKAGES]
    self._sandbox = PythonSandbox(workers, setup=setup, environment=variables | ENVIRONMENT,
                                  folders=[*folders, str(PACKAGE)], timeout=wall + 1.0,
                                  cpu_seconds=math.ceil(cpu) + 1, memory_mb=MEMORY_MB,
                                  output_chars=1 << 20, code_bytes=1 << 26,
                                  without=() if runs_texts else ("user",), quiet=not runs_texts)

  def run(self, calls: list[tuple]) -> list:
    """Returns what the function returned for each tuple of arguments, from JSON, or a `Fault`."""
    cpu, wall = self._limits
    if self._quick is None or self._quick >= cpu:
      outcomes = self._batch(calls, range(len(calls)), self._limits, self._budget)
    else:
      quick = self._quick, min(wall, WAITING * self._quick)
      outcomes = self._batch(calls, range(len(calls)), quick, math.inf)
      slow = [i for i, outcome in outcomes.items() if is_late(outcome)]
      outcomes |= self._batch(calls, slow, self._limits, self._budget) if slow else {}
    return [outcomes[i] for i in range(len(calls))]

  def _batch(self, calls: list[tuple], numbers: Iterable[int], limits: tuple[float, float],
             budget: float) -> dict[int, Any]:
    """Returns the outcomes of the calls of these numbers; see the arguments of the class."""
    waiting, lock, lost = collections.deque(numbers), threading.Lock(), [0.0]
    outcomes = dict.fromkeys(waiting, NOT_ASKED)

    def work() -> None:
      while lost[0] < budget:
        with lock:
          count = min(self._together, len(waiting), 1 + len(waiting) // self._workers)
          taken = [waiting.popleft() for _ in range(count)]
        if not taken:
          return
        answers, seconds = self._ask([calls[i] for i in taken], limits)
        with lock:
          outcomes.update(zip(taken, answers, strict=False))
          lost[0] += seconds
          waiting.extendleft(reversed(taken[len(answers):]))

    with concurrent.futures.ThreadPoolExecutor(self._workers) as threads:
      try:
        for done in [threads.submit(work) for _ in range(self._workers)]:
          done.result()
      except BaseException:  # Ctrl-C waits for the calls under way, not for all
        waiting.clear()
        raise
    return outcomes

  def pids(self) -> list[int]:
    return self._sandbox.pids()

  def close(self) -> None:
    """Ends the processes. Idempotent; also called at exit."""
    self._sandbox.close()

  def _ask(self, calls: list[tuple], limits: tuple[float, float]) -> tuple[list, float]:
    """Returns the outcomes of the first calls, and the seconds lost; the rest must be asked again.
    """
    token = secrets.token_hex(16)
    request = base64.b64encode(pickle.dumps((token, *limits, self._runs_texts, calls))).decode()
    result = self._sandbox.run(f"import call_child; call_child.answer({request!r})")
    outcomes: list = []
    for number, kind, content in _lines(result.output, token):
      if kind == "alone":
        self._together = 1
        return outcomes, 0.0
      if number == len(outcomes) < len(calls):
        outcomes.append(_paired(content) if kind == "value" else Fault(str(content), True))
    hit_timer = result.status == "killed" and result.output.endswith(TIMERS)
    if outcomes and (len(outcomes) == len(calls) or not hit_timer):
      return outcomes, 0.0
    return [*outcomes, self._fault(result)], result.seconds

  def _fault(self, result: ToolResult) -> Fault:
    """Returns why a process has not answered a call."""
    reason = (result.output.strip().splitlines() or [""])[-1][:200]
    costly = result.cpu >= 0.9 * (self._sandbox.limits.cpu_seconds - 1)
    if reason.endswith("SIGPROF") or (result.status == "timeout" and costly):
      return Fault(f"{COSTLY}: it used up its processor time", True)
    if reason.endswith("SIGALRM") or result.status == "timeout":
      return Fault(LATE, False)
    if result.status == "unavailable":
      return Fault(reason, False)
    return Fault(f"crash: the process ended ({result.status}) {reason}".rstrip(), True)


def _lines(output: str, token: str):
  """Yields (number, kind, content) of each line with the token; texts may write others."""
  for line in output.splitlines():
    if line.startswith(token):
      try:
        number, kind, content = json.loads(line.removeprefix(token))
      except (ValueError, TypeError, RecursionError):
        continue
      yield number, kind, content


def _paired(value):
  """Returns a value from JSON with pairs as tuples again: a component and its weight."""
  if isinstance(value, dict):
    return {name: tuple(part) if isinstance(part, list) else part for name, part in value.items()}
  return [_paired(part) for part in value] if isinstance(value, list) else value
