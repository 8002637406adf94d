"""Signals end a run, wherever they find it."""

import os
import signal
import threading
import time

import pytest

from jaxrl_llm.store.signals import Terminated, handled


class Deaf:
  """Its destructor gets a Ctrl-C, which Python then drops with a message."""

  def __del__(self):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lost_ctrl_c_ends_the_run_at_the_next_check():
  with handled() as guard:
    guard.check()
    deaf = Deaf()
    del deaf  # the default handler's exception is lost here, and nothing would know of it
    with pytest.raises(KeyboardInterrupt):
      guard.check()
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_at_once():
  with pytest.raises(KeyboardInterrupt), handled():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


def test_a_patient_run_ends_at_the_second_sigterm():
  with handled() as guard:
    guard.patient = True
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    assert guard.terminated
    with pytest.raises(Terminated) as ended:
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(60)
  assert ended.value.code == 143 and not ended.value.agreed


def test_sigterm_ends_a_run_as_an_exception_does():
  closed = []
  with pytest.raises(SystemExit) as ended, handled():
    try:
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(60)
    finally:
      closed.append(True)
  assert ended.value.code == 143 and closed
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handlers_of_others_stay():
  seen = []

  def elsewhere():
    with handled():
      seen.append(signal.getsignal(signal.SIGTERM))

  thread = threading.Thread(target=elsewhere)
  thread.start()
  thread.join()
  before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
  with handled():
    seen.append(signal.getsignal(signal.SIGTERM))
  signal.signal(signal.SIGTERM, before)
  assert seen == [signal.SIG_DFL, signal.SIG_IGN]
