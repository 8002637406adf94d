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
import os
import pickle
import secrets
import sys
import threading
from pathlib import Path

from jaxrl_llm.sandbox.python_sandbox import PythonSandbox
from jaxrl_llm.sandbox.results import Fault, ToolResult

TOGETHER = 16  # calls of one process
WORKERS = max(2, min(8, (os.cpu_count() or 2) // 2))
MEMORY_MB = 1024  # of address space, beside what the function's modules take
BUDGET = 120.0  # seconds that one batch may lose to calls without an end; the rest is not asked
# A library's threads would only take processor time from the trainer's, and JAX its devices.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
PACKAGES = ("site-packages", "dist-packages")  # visible, as functions may import more when called
INHERITED = ("HOME", "LD_LIBRARY_PATH")
PACKAGE = Path(__file__).parents[1]
SETUP = """import sys
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
    timeout: seconds of wall-clock time of one call.
    cpu_seconds: seconds of processor time of one call.

  Raises:
    ConfigError: no worker starts, or the source fails.
  """

  def __init__(self, source: str, *, timeout: float, cpu_seconds: int):
    setup = SETUP.format(path=sys.path, folder=str(Path(__file__).parent), source=source)
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    folders = [path for path in sys.path if Path(path).name in PACKAGES]
    self._together = TOGETHER
    self._sandbox = PythonSandbox(WORKERS, setup=setup, environment=inherited | ENVIRONMENT,
                                  folders=[*folders, str(PACKAGE)],
                                  timeout=timeout, cpu_seconds=cpu_seconds, memory_mb=MEMORY_MB,
                                  output_chars=1 << 20, code_bytes=1 << 26)

  def run(self, calls: list[tuple]) -> list:
    """Returns what the function returned for each tuple of arguments, from JSON, or a `Fault`."""
    outcomes: list = [Fault("not asked: other texts of the batch took all of its time", False)
                      ] * len(calls)
    waiting, lock, lost = collections.deque(range(len(calls))), threading.Lock(), [0.0]

    def work() -> None:
      while lost[0] < BUDGET:
        with lock:
          count = min(self._together, len(waiting), 1 + len(waiting) // WORKERS)
          numbers = [waiting.popleft() for _ in range(count)]
        if not numbers:
          return
        answers, seconds = self._ask([calls[i] for i in numbers])
        for i, outcome in zip(numbers, answers):
          outcomes[i] = outcome
        with lock:
          lost[0] += seconds
          waiting.extendleft(reversed(numbers[len(answers):]))

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as threads:
      try:
        for done in [threads.submit(work) for _ in range(WORKERS)]:
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

  def _ask(self, calls: list[tuple]) -> tuple[list, float]:
    """Returns the outcomes of the first calls, and the seconds lost; the rest must be asked again.
    """
    token = secrets.token_hex(16)
    request = base64.b64encode(pickle.dumps((token, calls))).decode()
    result = self._sandbox.run(f"import call_child; call_child.answer({request!r})")
    outcomes = []
    for number, kind, content in _lines(result.output, token):
      if kind == "alone":
        self._together = 1
        return outcomes, 0.0
      if number == len(outcomes) < len(calls):
        outcomes.append(_paired(content) if kind == "value" else Fault(str(content), True))
    if outcomes:
      return outcomes, 0.0
    return [self._fault(result)], result.seconds

  def _fault(self, result: ToolResult) -> Fault:
    """Returns why a process has not answered its first call."""
    reason = (result.output.strip().splitlines() or [""])[-1][:200]
    if result.status == "timeout":
      costly = result.cpu >= 0.9 * self._sandbox.limits.cpu_seconds
      return Fault("costly: it used up its processor time" if costly else "timeout", costly)
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
