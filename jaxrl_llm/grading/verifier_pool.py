"""Worker processes for answers that need algebra.

An answer that needs more processor time than its limit is wrong ("costly"). A worker that stalls
or dies leaves one row unscored, and no other. The workers are separate interpreters instead of
`multiprocessing` children, which would import the trainer's main module and with it JAX, and whose
order of hashes could not be fixed.
"""

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from jaxrl_llm.fields import ConfigError, installing
from jaxrl_llm.grading.grading import Question, Verdict, judge
from jaxrl_llm.types import Reward

WORKER = Path(__file__).with_name("verifier_worker.py")
START_SECONDS = 60.0  # until a worker has imported sympy
MAX_RESTARTS = 3  # a worker that stops or ends while starting is replaced
MEMORY = 4 << 30  # bytes of address space of one worker
QUICK_SECONDS = 0.25  # processor time of a first try, which nearly all questions need less than
GRACE = 30.0  # seconds that a busy machine may add to a question before its worker is replaced
TOO_EXPENSIVE = Verdict(False, "costly")  # too large, or timed out twice
TIMED_OUT = Verdict(False, "none", "timeout")  # by the time that it took
BUDGET_EXHAUSTED = Verdict(False, "none",
                           "timeout: other answers of the batch took all of its time")


class Pool:
  """Worker processes that start when first needed and stay; a context manager.

  Several threads may use one pool; their calls follow each other.

  Raises:
    ConfigError: math-verify is not installed.
  """

  def __init__(self):
    require_math()
    self._workers, self._lock = [], threading.Lock()

  def decide(self, questions: list[Question], *, workers: int = 2,
             timeout: float = 10.0) -> list[Verdict]:
    """Returns a verdict for each question, in order.

    Every question gets a short try first. Questions that need more time follow, as long as all of
    them together have taken less than `timeout`; the rest is unscored. So answers that would
    compute without end cost a batch a bounded time, and come after all others.

    Args:
      questions: equal ones are asked once.
      workers: number of processes; changes only the time.
      timeout: seconds of processor time for one question; then its prediction is wrong ("costly").

    Raises:
      RuntimeError: no worker starts.
    """
    distinct = list(dict.fromkeys(questions))
    quick = min(QUICK_SECONDS, timeout)
    with self._lock:
      try:
        verdicts = self._run(distinct, workers, quick, math.inf)
        slow = [question for question in distinct if verdicts[question] is TIMED_OUT]
        if quick < timeout and slow:
          verdicts |= self._run(slow, workers, timeout, time.monotonic() + timeout)
      # Also after an interrupt: a busy worker's late answer must not reach the next question.
      except BaseException:
        self._kill_all()
        raise
    return [TOO_EXPENSIVE if verdicts[question] is TIMED_OUT else verdicts[question]
            for question in questions]

  def close(self) -> None:
    """Ends the processes; the next use starts new ones."""
    with self._lock:
      self._kill_all()

  def pids(self) -> list[int]:
    return [worker.process.pid for worker in self._workers if not worker.dead]

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def _kill_all(self) -> None:
    for worker in self._workers:
      worker.kill()
    self._workers = []

  def _run(self, questions: list[Question], count: int, timeout: float,
           until: float) -> dict[Question, Verdict]:
    """Asks each question once; questions not asked before `until` are BUDGET_EXHAUSTED."""
    waiting, verdicts, failed = deque(questions), {}, 0
    while len(verdicts) < len(questions):
      if time.monotonic() >= until:
        verdicts |= dict.fromkeys(waiting, BUDGET_EXHAUSTED)
        waiting.clear()
      self._workers = [worker for worker in self._workers if not worker.is_dead()]
      busy = sum(worker.question is not None for worker in self._workers[:count])
      while len(self._workers) < min(count, len(waiting) + busy):
        self._workers.append(_Worker())
      used = self._workers[:count]
      for worker in used:
        seconds_left = min(timeout, max(0.1, until - time.monotonic()))
        if waiting and worker.idle and worker.submit(waiting[0], seconds_left):
          waiting.popleft()
      for worker, verdict in _wait(used):
        if worker.ready:
          verdicts[worker.question] = verdict
          worker.question = None
          continue
        failed += 1
        if failed >= MAX_RESTARTS:
          raise RuntimeError(
              f"{failed} verifier processes did not start ({verdict.unscored_reason}): "
              f"run `python -P {WORKER} {MEMORY}` to see why.")
    return verdicts


class _Worker:
  """One process, and the question that it works on."""

  def __init__(self):
    # sympy's simplifications depend on the order of hashes. It is fixed, so that every process
    # gives the same verdict.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    self.process = subprocess.Popen(
        [sys.executable, "-P", str(WORKER), str(MEMORY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env=environment,
        process_group=0)  # with its child
    self.question, self.ready, self.dead = None, False, False
    self.deadline = time.monotonic() + START_SECONDS
    self._buffer = b""

  def submit(self, question: Question, timeout: float) -> bool:
    """Sends a question; returns False if the process has died since the last one."""
    text = json.dumps({**dataclasses.asdict(question), "seconds": timeout})
    try:
      self.process.stdin.write(text.encode() + b"\n")
    except OSError:
      self.kill()
      return False
    self.question, self.deadline = question, time.monotonic() + 2 * timeout + GRACE
    return True

  def read(self) -> dict | None:
    """Returns the next message: None if incomplete, {"error": ...} if the process has ended."""
    chunk = os.read(self.process.stdout.fileno(), 65536)
    if not chunk:
      self.kill()
      code = self.process.returncode
      exit_cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
      return {"error": exit_cause}
    self._buffer += chunk
    line, newline, remainder = self._buffer.partition(b"\n")
    if not newline:
      return None
    self._buffer = remainder
    return json.loads(line)

  @property
  def idle(self) -> bool:
    """Returns whether it has started and works on no question."""
    return self.ready and self.question is None

  def is_dead(self) -> bool:
    """Returns whether it can take no more questions."""
    return self.dead or (self.idle and self.process.poll() is not None)

  def kill(self) -> None:
    """Ends the process, or keeps the exit status if it has ended already. Idempotent."""
    if not self.dead:
      self.dead = True
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self.process.pid, signal.SIGKILL)
    self.process.wait()
    self.process.stdin.close()
    self.process.stdout.close()


def _wait(workers: list[_Worker]) -> list[tuple[_Worker, Verdict]]:
  """Sleeps until a worker answers or is late; returns the verdicts of the questions that ended.

  A worker that did not start comes with the reason as a verdict, and is dead.
  """
  active = [worker for worker in workers if not worker.dead and not worker.idle]
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
    if not worker.ready and "ready" in message:
      worker.ready = True
    else:
      out.append((worker, _verdict(message)))
  responded = {id(key.data) for key, _ in events}
  for worker in active:
    if id(worker) not in responded and not worker.dead and time.monotonic() >= worker.deadline:
      worker.kill()
      out.append((worker, Verdict(False, "none", "timeout")))
  return out


def _verdict(message: dict) -> Verdict:
  """Returns what a worker's message says about its question."""
  died = message.get("died")
  if message.get("costly"):
    return TOO_EXPENSIVE
  if died == "SIGPROF":
    return TIMED_OUT
  if died is not None:
    reason = "timeout: the right answer" if died == "SIGALRM" else f"crash: killed by {died}"
    return Verdict(False, "none", reason)
  if "error" in message:
    return Verdict(False, "none", f"crash: {message['error']}")
  return Verdict(message["correct"], "algebra")


def has_math() -> bool:
  """Returns whether math-verify is installed."""
  return importlib.util.find_spec("math_verify") is not None


def require_math() -> None:
  """Refuses kind `math` if math-verify is not installed.

  Raises:
    ConfigError: naming the extra.
  """
  if not has_math():
    raise ConfigError(
        "verifier kind 'math' needs the package math-verify, which is not installed. "
        f"Fix: {installing('math')}, or another verifier (exact, numeric, choice).")


@functools.cache
def shared_pool() -> Pool:
  """Returns the pool that all calls of this process share."""
  pool = Pool()
  atexit.register(pool.close)
  return pool


def close_all() -> None:
  """Ends the shared worker processes; also called at exit. The next use starts new ones."""
  if shared_pool.cache_info().currsize:
    shared_pool().close()


def grade_many(kind: str, completions: list[str], answers: list[str], *, workers: int = 2,
               timeout: float = 10.0) -> list[Verdict]:
  """Returns verdicts with their rungs, in order; see `grading.judge` for the kinds.

  Args:
    workers: processes for the questions that need algebra; they stay for later calls.
    timeout: seconds of processor time for one such question; then its completion is wrong
      ("costly"), and `Pool.decide` says what bounds the time of all.

  Raises:
    ConfigError: kind `math` without math-verify.
    ValueError: unknown kind, or lists of different lengths.
  """
  if kind == "math":
    require_math()
  pairs = zip(completions, answers, strict=True)
  verdicts = [judge(kind, completion, answer) for completion, answer in pairs]
  questions = {i: v for i, v in enumerate(verdicts) if isinstance(v, Question)}
  if questions and not has_math():
    missing = Verdict(False, "none", "the box needs algebra: pip install -e '.[math]'")
    verdicts = [missing if isinstance(v, Question) else v for v in verdicts]
  elif questions:
    decided = shared_pool().decide([*questions.values()], workers=workers, timeout=timeout)
    for i, verdict in zip(questions, decided, strict=True):
      verdicts[i] = verdict
  return [verdict for verdict in verdicts if isinstance(verdict, Verdict)]


def verify_many(kind: str, completions: list[str], answers: list[str], *, workers: int = 2,
                timeout: float = 10.0) -> list[Reward]:
  """Returns the rewards of many completions, 1 or 0, in order; see `grade_many`.

  A row without a verdict has an `unscored_reason`.
  """
  graded = grade_many(kind, completions, answers, workers=workers, timeout=timeout)
  return [Reward(float(v.correct), v.correct, v.unscored_reason, rung=v.rung) for v in graded]
