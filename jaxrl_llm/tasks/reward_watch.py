"""A watch over calls of a plain reward: it names one that takes long, and ends it at its limit."""

import logging
import signal
import threading
import time
from collections.abc import Callable

from jaxrl_llm.sandbox.results import Fault

NAMED = 30.0  # seconds after which the log names a call
IN_A_ROW = 3  # calls that reached their limit; the others of the batch are then not made
SIGNAL = signal.SIGVTALRM  # rewards use SIGALRM, as math-verify does
ISOLATED = "Fix: @register.reward(..., isolated=True), whose process can be ended"
logger = logging.getLogger(__name__)


class LateError(BaseException):
  """A call has reached its limit; no `except Exception` of a reward takes it for its own."""


class Watch:
  """A context manager for calls of one reward, all made by the thread that entered it.

  A call is ended by an exception that a signal raises between two steps of Python, so it must be in
  the main thread. A call that waits in C code without an end can only be named.

  Args:
    label: name and place of the reward.
    limit: seconds of one call.
  """

  def __init__(self, label: str, limit: float):
    self._label, self._limit = label, limit
    self._begin: float | None = None
    self._late, self._closed = 0, threading.Event()
    self._main = threading.current_thread() is threading.main_thread()
    self._thread = threading.Thread(target=self._look, daemon=True, name="reward watch")

  def __enter__(self) -> "Watch":
    if self._main:
      signal.signal(SIGNAL, self._end)
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._closed.set()
    self._thread.join()
    if self._main:
      signal.signal(SIGNAL, signal.SIG_IGN)

  def call(self, function: Callable, *arguments):
    """Returns what the function returns, or a Fault if it reached its limit."""
    if self._late >= IN_A_ROW:
      return Fault(f"timeout: not asked after {IN_A_ROW} calls in a row without an end", False)
    try:
      try:
        self._begin = time.monotonic()
        outcome = function(*arguments)
      finally:
        self._begin = None
    except LateError:
      self._begin = None
      self._late += 1
      return Fault(f"timeout: no answer within reward.timeout = {self._limit:g} s", False)
    self._late = 0
    return outcome

  def _end(self, *_) -> None:
    if self._elapsed() >= self._limit:
      raise LateError

  def _elapsed(self) -> float:
    begin = self._begin
    return 0.0 if begin is None else time.monotonic() - begin

  def _look(self) -> None:
    """Looks at the call under way now and then, until the watch is closed."""
    last_report, main = 0.0, threading.main_thread().ident
    while not self._closed.wait(min(0.5, self._limit / 4)):
      seconds = self._elapsed()
      if seconds < last_report:
        last_report = 0.0  # another call
      if seconds >= NAMED and last_report < NAMED:
        logger.warning("%s: a call has taken %d s so far; its limit is reward.timeout = %g s",
                       self._label, seconds, self._limit)
        last_report = seconds
      if seconds >= self._limit and self._main:
        signal.pthread_kill(main, SIGNAL)
      if seconds >= self._limit + NAMED and last_report < self._limit + NAMED:
        logger.warning("%s: a call has taken %d s and cannot be ended here. %s", self._label,
                       seconds, ISOLATED)
        last_report = seconds
