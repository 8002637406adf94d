"""Ctrl-C and SIGTERM: both end a run, and neither gets lost."""

import contextlib
import logging
import signal
import threading

TERMINATED = 128 + signal.SIGTERM  # the exit status that shells report for it
logger = logging.getLogger(__name__)


class Terminated(SystemExit):
  """SIGTERM ends the run.

  Attributes:
    agreed: whether all processes of the run end now, after they have saved the same iteration.
  """

  def __init__(self, agreed: bool = False):
    super().__init__(TERMINATED)
    self.agreed = agreed


class Signals:
  """The signals that the process received since `handled` began.

  Attributes:
    patient: whether SIGTERM waits for the next call of `check`. Elsewhere it ends what is under way
      immediately, as a second SIGTERM always does.
  """

  def __init__(self):
    self.patient = False
    self._interrupted = False
    self._terminated = False

  @property
  def terminated(self) -> bool:
    """Returns whether SIGTERM has come and waits."""
    return self._terminated

  def check(self) -> None:
    """Raises KeyboardInterrupt if a Ctrl-C was lost.

    Python drops what a handler raises inside a destructor or a callback of the garbage collector,
    with no more than a message. The run would then continue.
    """
    if self._interrupted:
      raise KeyboardInterrupt

  def on_interrupt(self, number, frame) -> None:
    del number, frame
    self._interrupted = True
    raise KeyboardInterrupt

  def on_terminate(self, number, frame) -> None:
    del number, frame
    is_second, self._terminated = self._terminated, True
    if is_second or not self.patient:
      raise Terminated
    logger.warning("SIGTERM: this iteration is finished and saved, then the run ends; a second "
                   "SIGTERM ends it at once")


@contextlib.contextmanager
def handled():
  """Yields the Signals of the context; SIGTERM ends it by SystemExit, Ctrl-C as usual.

  Outside the main thread, where signals cannot be handled, and where the program has its own
  handler, nothing changes.
  """
  signals = Signals()
  handlers = {signal.SIGTERM: (signal.SIG_DFL, signals.on_terminate),
              signal.SIGINT: (signal.default_int_handler, signals.on_interrupt)}
  main = threading.current_thread() is threading.main_thread()
  numbers = [number for number, (default, _) in handlers.items()
             if main and signal.getsignal(number) is default]
  for number in numbers:
    signal.signal(number, handlers[number][1])
  try:
    yield signals
  finally:
    for number in numbers:
      signal.signal(number, handlers[number][0])
