"""Runs a policy's programs outside of the trainer, in warm worker processes with limits."""

import dataclasses
import logging
import queue
import tempfile
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.sandbox.isolation import Isolation, names
from jaxrl_llm.sandbox.limits import Limits
from jaxrl_llm.sandbox.results import TIMEOUT, TIMERS, Tool, ToolResult, interpret
from jaxrl_llm.sandbox.sandbox_process import GoneError, LateError, WorkerProcess

_LOG = logging.getLogger(__name__)
GRACE = 2.0  # seconds after a program's time limit; then the worker itself counts as hung


class PythonSandbox(Tool):
  """A tool that runs texts as Python programs (see `results.Tool`).

  Several threads may use one sandbox. Each program runs in a fork of a small interpreter that has
  imported only the standard library's usual modules, so no state passes from one program to the
  next. The result's text is the program's standard output and, if it fails, one line that says why.
  Its error stream is left out. `random` starts from seed 0 and string hashes are fixed; the clock,
  process ids and the operating system's randomness are not.

  Args:
    workers: number of programs that run at the same time.
    require: names of `Isolation` fields; without any one of them no sandbox is made.
    without: names of `Isolation` fields that are not tried, for systems on which they do harm.
    setup: Python text that each worker runs once, before `files` are isolated. Programs inherit
      its modules; the memory that it takes comes on top of `memory_mb`.
    environment: variables that `setup` sees; programs see none.
    folders: which programs can read, beside the interpreter's libraries.
    quiet: leaves out the warning of missing isolation, for programs that are trusted.
    limits: fields of `Limits`.

  Raises:
    ConfigError: a limit out of range, an unknown name, a required isolation that the system does
      not offer, or no worker that starts.
  """

  def __init__(self, workers: int = 2, *, require: Iterable[str] = (), without: Iterable[str] = (),
               setup: str = "", environment: dict[str, str] | None = None,
               folders: Sequence[str] = (), quiet: bool = False, **limits):
    if not isinstance(workers, int) or not 1 <= workers <= 1024:
      raise ConfigError(
          f"PythonSandbox: workers = {workers!r}: allowed is a whole number in [1, 1024]. "
          "Fix: workers=2.")
    self.limits = Limits(**limits)
    required_names = names("PythonSandbox require", require)
    avoided_names = names("PythonSandbox without", without)
    self._settings = {
        **dataclasses.asdict(self.limits),
        "without": sorted(avoided_names),
        "temporary": tempfile.gettempdir(),
        "setup": setup,
        "environment": environment or {},
        "folders": list(folders),
    }
    self._workers = [WorkerProcess(self._settings) for _ in range(workers)]
    self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")
    self._lock, self._idle = threading.Lock(), queue.SimpleQueue()
    self._finalizer = weakref.finalize(self, _end, self._workers)
    try:
      isolations = [worker.isolation() for worker in self._workers]
    except (GoneError, LateError) as error:
      self.close()
      reason = (str(error).strip().splitlines() or ["no answer"])[-1]
      fix = ("what its setup imports" if setup else
             "leave out the isolation that failed by `without`, or use the calculator")
      raise ConfigError(f"PythonSandbox: a worker did not start: {reason}. Fix: {fix}.") from None
    self.isolation: Isolation = isolations[0]
    if lacking := sorted(required_names & set(self.isolation.missing)):
      self.close()
      raise ConfigError(
          f"PythonSandbox: require = {sorted(required_names)}: this system does not offer "
          f"{', '.join(lacking)}. Fix: run as root or where user namespaces are allowed, or "
          "require less.")
    if self.isolation.missing and not quiet:
      _LOG.warning("this system runs a policy's programs without isolation by %s; "
                   "jaxrl_llm/sandbox/README.md says what that means",
                   ", ".join(self.isolation.missing))
    self._try_one()
    for i in range(workers):
      self._idle.put(i)

  def run(self, code: str) -> ToolResult:
    """Waits for a free worker, then runs one program.

    A worker that dies is replaced, and its program runs once more. A program that a signal ended
    also runs once more, because the signal may come from outside, for example from a system short
    of memory; if it is killed again, or by a timer of its own, that is its result. Each case is
    counted on its own.

    Raises:
      RuntimeError: the sandbox is closed.
    """
    program = code.encode("utf-8", "surrogatepass")
    if len(program) > self.limits.code_bytes:
      return ToolResult("error", f"the program is longer than {self.limits.code_bytes} bytes")
    index, kills, crashes = self._idle.get(), 0, 0
    try:
      while crashes < 2:
        if not self._finalizer.alive:
          raise RuntimeError("PythonSandbox: run was called after close.")
        try:
          outcome = self._ask(self._workers[index], program)
          kills += outcome.status == "killed"
          if outcome.status != "killed" or kills == 2 or outcome.output.endswith(TIMERS):
            return outcome
        except GoneError as error:
          _LOG.warning("a sandbox worker was replaced: %s", error)
          self._replace(index)
          crashes += 1
        except LateError:
          _LOG.warning("a sandbox worker did not end its program in time and was replaced")
          self._replace(index)
          return ToolResult("timeout", TIMEOUT, self.limits.timeout + GRACE)
      return ToolResult("unavailable", "the sandbox is unavailable")
    finally:
      self._idle.put(index)

  def run_many(self, codes: Sequence[str]) -> list[ToolResult]:
    """Returns the results in order; up to `workers` programs run at the same time."""
    return list(self._threads.map(self.run, codes))

  def pids(self) -> list[int]:
    """Returns the ids of the workers' processes, for checks."""
    return [worker.process.pid for worker in self._workers]

  def close(self) -> None:
    """Ends all processes, running programs included. Idempotent."""
    self._finalizer()
    self._threads.shutdown()

  def _ask(self, worker: WorkerProcess, program: bytes) -> ToolResult:
    if hasattr(self, "isolation") and worker.isolation() != self.isolation:
      raise GoneError("its isolation differs from that of the first workers")
    outcome = worker.ask(program, self.limits.timeout + GRACE)
    return interpret(outcome, cpu_seconds=self.limits.cpu_seconds,
                     output_chars=self.limits.output_chars, directory=worker.directory)

  def _try_one(self) -> None:
    """Runs one program, so that a system on which all would fail is an error of the configuration.

    Raises:
      ConfigError: it fails, or cannot import.
    """
    try:
      # colorsys is not among the modules that workers import before they fork. What a setup's
      # programs need, it has imported.
      trial = b"print(1)" if self._settings["setup"] else b"import colorsys; print(1)"
      outcome = self._ask(self._workers[0], trial)
    except (GoneError, LateError) as error:
      outcome = ToolResult("unavailable", str(error))
    if outcome != ToolResult("ok", "1\n"):
      self.close()
      raise ConfigError(
          f"PythonSandbox: a first program ended with {outcome.status}: {outcome.output}. Fix: "
          f"where "
          "`files` are not isolated, user 65534 must be able to read the interpreter's libraries "
          "(an interpreter outside of a private folder, or without=('user',)); else more "
          "memory_mb, open_files or timeout.")

  def _replace(self, index: int) -> None:
    self._workers[index].kill()
    with self._lock:  # nobody would end a worker that is made after close
      if self._finalizer.alive:
        self._workers[index] = WorkerProcess(self._settings)


def _end(workers: list[WorkerProcess]) -> None:
  for worker in workers:
    worker.kill()
