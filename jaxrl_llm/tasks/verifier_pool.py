"""Answers that need algebra go to worker processes; one that hangs or dies costs its own row a
verdict, no more.
"""

import atexit
import functools
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.tasks.grading import Question, Verdict, judge
from jaxrl_llm.types import Reward

WORKER = Path(__file__).with_name("verifier_worker.py")
START_SECONDS = 120.0  # of a worker, until sympy is imported
MEMORY = 4 << 30  # bytes of address space of a worker


class Pool:
  """Persistent processes, begun when first needed; a context manager.

  Raises:
    ConfigError: math-verify is not installed.
  """

  def __init__(self):
    require_math()
    self._workers, self._lock = [], threading.Lock()

  def decide(self, questions: list[Question], *, workers: int = 2,
             timeout: float = 10.0) -> list[Verdict]:
    """A verdict for each question, in order.

    Args:
      questions: equal ones are asked once.
      workers: processes used; changes the time alone.
      timeout: seconds of wall-clock time for one question; then its worker is killed and replaced.
    """
    with self._lock:
      try:
        found = self._run(list(dict.fromkeys(questions)), workers, timeout)
      # an interrupt too: what a busy worker will still say must meet no later question
      except BaseException:
        self._kill_all()
        raise
    return [found[question] for question in questions]

  def close(self) -> None:
    """Ends the processes; the next use begins new ones."""
    with self._lock:
      self._kill_all()

  def pids(self) -> list[int]:
    return [worker.process.pid for worker in self._workers]

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def _kill_all(self) -> None:
    for worker in self._workers:
      worker.kill()
    self._workers = []

  def _run(self, questions: list[Question], count: int, timeout: float) -> dict[Question, Verdict]:
    waiting, found = deque(questions), {}
    while len(found) < len(questions):
      self._workers = [worker for worker in self._workers if not worker.gone()]
      while len(self._workers) < min(count, len(questions) - len(found)):
        self._workers.append(_Worker())
      used = self._workers[:count]
      for worker in used:
        if waiting and worker.ready and worker.question is None and worker.ask(waiting[0], timeout):
          waiting.popleft()
      for worker, verdict in _wait(used):
        found[worker.question] = verdict
        worker.question = None
    return found


class _Worker:
  """One process and the question it is at."""

  def __init__(self):
    # Hash order enters sympy's simplifications: fixed, so that a verdict does not depend on the
    # process.
    self.process = subprocess.Popen(
        [sys.executable, "-P", str(WORKER), str(MEMORY)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, env={
            **os.environ, "PYTHONHASHSEED": "0"
        })
    self.question, self.ready, self.dead = None, False, False
    self.deadline = time.monotonic() + START_SECONDS
    self._buffer = b""

  def ask(self, question: Question, timeout: float) -> bool:
    """Hands over a question; False where the process has died since the last one."""
    text = json.dumps({
        "gold": question.gold,
        "prediction": question.prediction,
        "seconds": timeout
    })
    try:
      self.process.stdin.write(text.encode() + b"\n")
    except OSError:
      self.kill()
      return False
    self.question, self.deadline = question, time.monotonic() + timeout
    return True

  def read(self) -> dict | None:
    """The next message, None while it is incomplete, {"error": ...} where the process ended."""
    chunk = os.read(self.process.stdout.fileno(), 65536)
    if not chunk:
      self.kill()
      code = self.process.returncode
      return {
          "error": f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
      }
    self._buffer += chunk
    line, newline, rest = self._buffer.partition(b"\n")
    if not newline:
      return None
    self._buffer = rest
    return json.loads(line)

  def gone(self) -> bool:
    return self.dead or (self.question is None and self.ready and self.process.poll() is not None)

  def kill(self) -> None:
    """Idempotent; the exit status stays that of a process that had ended by itself."""
    self.dead = True
    self.process.kill()
    self.process.wait()
    self.process.stdin.close()
    self.process.stdout.close()


def _wait(workers: list[_Worker]) -> list[tuple[_Worker, Verdict]]:
  """Sleeps until a worker speaks or is late; verdicts of the questions that ended by that."""
  active = [
      worker for worker in workers
      if not worker.dead and (worker.question is not None or not worker.ready)
  ]
  out = []
  with selectors.DefaultSelector() as selector:
    for worker in active:
      selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
    nearest = min((worker.deadline for worker in active), default=time.monotonic())
    events = selector.select(max(0.0, nearest - time.monotonic()))
  for key, _ in events:
    worker, message = key.data, key.data.read()
    if message is None:
      continue
    if not worker.ready:
      if "ready" not in message:
        raise RuntimeError(f"a verifier process did not start ({message.get('error')}): "
                           f"run `python -P {WORKER} {MEMORY}` to see why.")
      worker.ready = True
    else:
      out.append((worker, _verdict(message)))
  heard = {id(key.data) for key, _ in events}
  for worker in active:
    if id(worker) not in heard and not worker.dead and time.monotonic() >= worker.deadline:
      worker.kill()
      if not worker.ready:
        raise RuntimeError(f"a verifier process did not start within {START_SECONDS:.0f} s.")
      out.append((worker, Verdict(False, "none", "timeout")))
  return out


def _verdict(message: dict) -> Verdict:
  if "error" in message:
    return Verdict(False, "none", f"crash: {message['error']}")
  return Verdict(message["correct"], "algebra")


def require_math() -> None:
  """Refuses kind `math` where math-verify is not installed.

  Raises:
    ConfigError: naming the extra.
  """
  if importlib.util.find_spec("math_verify") is None:
    raise ConfigError(
        "verifier kind 'math' needs the package math-verify, which is not installed. "
        "Fix: pip install 'jaxrl_llm[math]', or another verifier (exact, numeric, choice).")


@functools.cache
def shared_pool() -> Pool:
  """The pool that all calls of this process share."""
  pool = Pool()
  atexit.register(pool.close)
  return pool


def close_all() -> None:
  """Ends the shared worker processes; also done at exit. The next use begins new ones."""
  if shared_pool.cache_info().currsize:
    shared_pool().close()


def grade_many(kind: str, completions: list[str], answers: list[str], *, workers: int = 2,
               timeout: float = 10.0) -> list[Verdict]:
  """Verdicts with their rungs, in order; see `grading.judge` for the kinds.

  Args:
    workers: processes for the questions that need algebra; they are kept for later calls.
    timeout: seconds for one such question; then it is unscored ("timeout").

  Raises:
    ConfigError: kind `math` without math-verify.
    ValueError: unknown kind, or lists of different lengths.
  """
  if kind == "math":
    require_math()
  verdicts = [
      judge(kind, completion, answer)
      for completion, answer in zip(completions, answers, strict=True)
  ]
  open_ = [i for i, verdict in enumerate(verdicts) if isinstance(verdict, Question)]
  if open_:
    decided = shared_pool().decide([verdicts[i] for i in open_], workers=workers, timeout=timeout)
    for i, verdict in zip(open_, decided, strict=True):
      verdicts[i] = verdict
  return verdicts


def verify_many(kind: str, completions: list[str], answers: list[str], *, workers: int = 2,
                timeout: float = 10.0) -> list[Reward]:
  """Rewards 1 or 0 of many completions; a row without a verdict carries `unscored_reason`. See
  `grade_many`.
  """
  graded = grade_many(kind, completions, answers, workers=workers, timeout=timeout)
  return [Reward(float(v.correct), v.correct, v.unscored_reason) for v in graded]
