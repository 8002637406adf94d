"""Two trainers never write into one folder, and a killed one leaves no lock behind."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_llm.config import ConfigError
from jaxrl_llm.store import lock

ROOT = Path(__file__).parents[2]
# Holds the lock, starts a child that inherits all its files, says so, and waits.
HOLDER = """
import subprocess, sys, time
sys.path[:0] = [{root!r}, {here!r}]
import test_lock
with test_lock.LOCKS[{kind!r}]({folder!r}):
  child = subprocess.Popen(["sleep", "600"], close_fds=False, stdout=subprocess.DEVNULL)
  print(child.pid, flush=True)
  time.sleep(600)
"""


class PidFile:
  """Wrong: the file itself is the lock, so a killed process leaves it."""

  def __init__(self, folder):
    self.path = Path(folder) / "pid"

  def __enter__(self):
    if self.path.exists():
      raise ConfigError("taken")
    self.path.write_text(str(os.getpid()))

  def __exit__(self, *_):
    self.path.unlink()


class Flock:
  """Wrong: the lock belongs to the open file, which a child of a killed process keeps."""

  def __init__(self, folder):
    self.path = Path(folder) / "flock"

  def __enter__(self):
    self.number = os.open(self.path, os.O_RDWR | os.O_CREAT)
    os.set_inheritable(self.number, True)
    try:
      fcntl.flock(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      os.close(self.number)
      raise ConfigError("taken") from None

  def __exit__(self, *_):
    os.close(self.number)


LOCKS = {"ours": lock.held, "pid file": PidFile, "flock": Flock}


def free_after_a_kill(kind: str, folder: Path) -> bool:
  """Whether the lock refuses while another process holds it, and is free when that was killed."""
  code = HOLDER.format(root=str(ROOT), here=str(ROOT / "tests" / "store"), kind=kind,
                       folder=str(folder))
  holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
  orphan = int(holder.stdout.readline())
  try:
    with pytest.raises(ConfigError) as refused, LOCKS[kind](folder):
      pass
    if kind == "ours":
      assert f"process {holder.pid} on {os.uname().nodename}" in str(refused.value)
      assert "\n" not in str(refused.value) and "Fix: " in str(refused.value)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    os.kill(orphan, 0)  # it still lives
    try:
      with LOCKS[kind](folder):
        return True
    except ConfigError:
      return False
  finally:
    holder.kill()
    holder.stdout.close()
    os.kill(orphan, signal.SIGKILL)


@pytest.mark.parametrize("kind", LOCKS)
def test_a_killed_process_leaves_no_lock_and_neither_does_its_orphan(kind, tmp_path):
  assert free_after_a_kill(kind, tmp_path) == (kind == "ours")


def test_one_process_is_refused_its_own_folder_and_keeps_the_lock(tmp_path):
  with lock.held(tmp_path / "run"):
    with pytest.raises(ConfigError, match=f"process {os.getpid()} on"), lock.held(tmp_path / "run"):
      pass
    with lock.held(tmp_path / "other"):
      pass
    code = f"from jaxrl_llm.store import lock\nwith lock.held({str(tmp_path / 'run')!r}): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert f"process {os.getpid()} on" in done.stderr, "the second attempt dropped the lock"
  with lock.held(tmp_path / "run"):
    pass


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
  def refuse(*_):
    raise OSError(lock.errno.ENOLCK, "No locks available")

  monkeypatch.setattr(fcntl, "flock", refuse)
  with lock.held(tmp_path):
    pass
  assert "No locks available" in caplog.text


def test_a_folder_that_was_moved_away_is_noticed(tmp_path):
  run = tmp_path / "run"
  with lock.held(run):
    lock.check(run)
    run.rename(tmp_path / "elsewhere")
    with pytest.raises(lock.MovedError, match="was moved away"):
      lock.check(run)
    run.mkdir()  # another folder in its place is none of this run's
    with pytest.raises(lock.MovedError, match="was moved away"):
      lock.check(run)
  lock.check(tmp_path / "of nobody")


@pytest.mark.parametrize("moved", [True, False])
def test_what_fails_in_a_moved_folder_is_the_move(tmp_path, caplog, moved):
  """A checkpoint that is being written fails in Orbax's thread, which logs a traceback."""
  with pytest.raises(lock.MovedError if moved else ValueError) as error:
    with lock.held(tmp_path / "run"):
      if moved:
        (tmp_path / "run").rename(tmp_path / "elsewhere")
      try:
        raise ValueError(f"No ArrayMetadata found: {tmp_path}/run/checkpoints/5")
      except ValueError:
        logging.getLogger("absl").exception("async save failed")
        raise
  assert ("was moved away" in str(error.value)) == moved
  assert ("async save failed" in caplog.text) != moved
