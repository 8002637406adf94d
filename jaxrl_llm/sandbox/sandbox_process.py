"""The trainer's end of one sandbox worker: starts it, asks it, ends it."""

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from jaxrl_llm.sandbox import linux
from jaxrl_llm.sandbox.isolation import Isolation
from jaxrl_llm.sandbox.results import Finished

WORKER = Path(__file__).with_name("sandbox_worker.py")
START_SECONDS = 60.0
# -I would ignore PYTHONHASHSEED. In an environment of only these variables, its other effects are
# those of -s -P.
COMMAND = [sys.executable, "-s", "-P", "-S", "-B", str(WORKER)]
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


class GoneError(Exception):
  """The worker has ended, or reported that it cannot work."""


class LateError(Exception):
  """The worker has not answered in time."""


class WorkerProcess:
  """One worker, used by one thread at a time; any thread may call `kill`."""

  def __init__(self, settings: dict):
    self.directory = ""  # parent of the programs' directories, if files are not isolated
    self.process = subprocess.Popen(
        [*COMMAND, json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        env=ENVIRONMENT | settings["environment"],
        start_new_session=True)  # so that an interrupt from the keyboard does not reach it
    os.set_blocking(self.process.stdin.fileno(), False)
    self._start_by = time.monotonic() + START_SECONDS
    self._isolation: Isolation | None = None
    self._rest, self._busy = b"", threading.Lock()

  def isolation(self) -> Isolation:
    """Waits until the worker has started and returns the isolation in force.

    Raises:
      GoneError, LateError: it did not start.
    """
    if self._isolation is None:
      message = self._line(self._start_by)
      self.directory = message["directory"]
      self._isolation = Isolation(**dict.fromkeys(message["isolation"], True))
    return self._isolation

  def ask(self, code: bytes, seconds: float) -> Finished:
    """Runs a program.

    Raises:
      GoneError, LateError: the worker failed; it must be killed.
    """
    with self._busy:
      self.isolation()
      deadline = time.monotonic() + seconds
      self._send(len(code).to_bytes(8, "big") + code, deadline)
      message = self._line(deadline)
      head = self._exactly(message["head"], deadline)
      tail = None if message["tail"] is None else self._exactly(message["tail"], deadline)
      err = self._exactly(message["err"], deadline)
    return Finished(message["wait"], message["late"], message["cpu"], head, tail, err,
                    message["seconds"])

  def kill(self) -> None:
    """Ends the worker and its processes, and returns when they are gone. Idempotent."""
    has_namespace = self._isolation is None or self._isolation.processes
    if not has_namespace:
      self._end_by_input()
    # The supervisor kills the server and waits for the end of its namespace.
    self.process.terminate()
    try:
      self.process.wait(5)
    except subprocess.TimeoutExpired:
      self.process.kill()
      self.process.wait()
    # A thread that waits for an answer has seen the end by now, so none uses the handles.
    with self._busy:
      self.process.stdin.close()
      self.process.stdout.close()
    if self.directory:
      try:
        linux.remove_tree(self.directory)
      except OSError:
        pass  # the server has removed it, or a process that escaped the search still writes there

  def _end_by_input(self) -> None:
    """Asks the server to end. Without a process namespace only it can end a program's processes."""
    try:
      self.process.stdin.close()  # the server ends when its input does
      self.process.wait(1)
    except (OSError, subprocess.TimeoutExpired):
      pass

  def _send(self, request: bytes, deadline: float) -> None:
    try:
      poll, handle = select.poll(), self.process.stdin.fileno()
      poll.register(handle, select.POLLOUT)
      while request:
        if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
          raise LateError
        request = request[os.write(handle, request):]
    except (OSError, ValueError) as error:
      raise GoneError(f"request: {error}") from None

  def _line(self, deadline: float) -> dict:
    while b"\n" not in self._rest:
      self._rest += self._read_chunk(deadline)
    line, _, self._rest = self._rest.partition(b"\n")
    message = json.loads(line)
    if "error" in message:
      raise GoneError(message["error"])
    return message

  def _exactly(self, count: int, deadline: float) -> bytes:
    while len(self._rest) < count:
      self._rest += self._read_chunk(deadline)
    chunk, self._rest = self._rest[:count], self._rest[count:]
    return chunk

  def _read_chunk(self, deadline: float) -> bytes:
    try:
      poll = select.poll()  # select fails for file numbers above 1023, which a trainer may have
      poll.register(self.process.stdout, select.POLLIN)
      if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
        raise LateError
      chunk = os.read(self.process.stdout.fileno(), 1 << 16)
    except (OSError, ValueError) as error:
      raise GoneError(f"answer: {error}") from None
    if not chunk:
      raise GoneError("it has ended")
    return chunk
