"""Commands in forks of a process that has imported what they import (fork_server.py)."""

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import programs

SERVER = Path(__file__).with_name("fork_server.py")
# Variables that an interpreter, a library or its loader reads before the fork.
EARLY = ("PYTHON", "LD_", "MPL", "OMP_", "OPENBLAS_", "MKL_", "HF_", "TRANSFORMERS_", "TF_")


def early(environment: dict[str, str]) -> frozenset[tuple[str, str]]:
  return frozenset(item for item in environment.items() if item[0].startswith(EARLY))


@functools.cache
def server(variables: frozenset[tuple[str, str]]) -> socket.socket:
  """Starts the server for commands with these early variables, once; it ends with this process.

  JAX reads the other variables of a command after the fork.
  """
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  others = {key: value for key, value in os.environ.items()
            if not key.startswith((*EARLY, "JAX_", "XLA_"))}
  with theirs:
    process = subprocess.Popen([sys.executable, SERVER, str(theirs.fileno())],
                               pass_fds=[theirs.fileno()], env=others | dict(variables))

  def close():
    ours.close()
    process.wait()

  atexit.register(close)
  return ours


def begin(arguments: list[str], cwd: Path, environment: dict[str, str], output=None):
  """As Command, by a start of an interpreter."""
  outputs = ({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if output is None else
             {"stdout": output, "stderr": subprocess.STDOUT})
  return subprocess.Popen([sys.executable, *arguments], cwd=cwd, env=environment, text=True,
                          **outputs)


def run(arguments: list[str], cwd: Path, environment: dict[str, str] | None = None,
        timeout: float = 500.0, interpreter: bool = False) -> subprocess.CompletedProcess:
  """As subprocess.run of `python <arguments>`, in a fork or by a start of an interpreter.

  Args:
    environment: by default that of commands which share compiled programs.
  """
  variables = programs.environment() if environment is None else environment
  process = (begin if interpreter else Command)(arguments, cwd, variables)
  try:
    out, errors = process.communicate(timeout=timeout)
  finally:
    process.kill()
  return subprocess.CompletedProcess(arguments, process.returncode, out, errors)


class Command:
  """`python <arguments>` in a fork, with the methods of subprocess.Popen that tests use.

  Args:
    arguments: path of the script, and what follows it.
    output: the file for what it prints and for its errors; None: a pipe for each.
  """

  def __init__(self, arguments: list[str], cwd: Path, environment: dict[str, str], output=None):
    self.args, self.returncode, self._readers = arguments, None, {}
    self.stdout = self.stderr = None
    self._replies, theirs = socket.socketpair()
    if output is not None:
      ends = [output.fileno(), output.fileno()]
    else:
      ends = [0, 0]
      (ours, ends[0]), (errors, ends[1]) = os.pipe(), os.pipe()
      self.stdout, self.stderr = open(ours), open(errors)
    request = {"argv": arguments, "cwd": str(cwd), "environment": environment}
    with theirs:
      socket.send_fds(server(early(environment)), [json.dumps(request).encode()],
                      [theirs.fileno(), *ends])
    if output is None:
      for end in ends:
        os.close(end)
    self._lines = self._replies.makefile("r")
    self.pid = self._reply()["pid"]

  def _reply(self) -> dict:
    line = self._lines.readline()
    assert line, f"{SERVER.name} ended; its errors are among those of the tests"
    return json.loads(line)

  def poll(self) -> int | None:
    if self.returncode is None and select.select([self._replies], [], [], 0)[0]:
      self._finish()
    return self.returncode

  def _finish(self) -> None:
    self.returncode = self._reply()["status"]
    self._lines.close()
    self._replies.close()

  def wait(self, timeout: float | None = None) -> int:
    if self.returncode is None:
      if not select.select([self._replies], [], [], timeout)[0]:
        raise subprocess.TimeoutExpired(self.args, timeout)
      self._finish()
    return self.returncode

  def communicate(self, timeout: float | None = None) -> tuple[str, str]:
    """Returns output and errors, of which nothing may have been read before."""
    end = None if timeout is None else time.monotonic() + timeout
    remaining = lambda: None if end is None else max(end - time.monotonic(), 0.0)
    for name, pipe in {"stdout": self.stdout, "stderr": self.stderr}.items():
      if name not in self._readers:
        self._readers[name] = Reader(pipe)
    for reader in self._readers.values():
      reader.join(remaining())
      if reader.is_alive():
        raise subprocess.TimeoutExpired(self.args, timeout)
    self.wait(remaining())
    return self._readers["stdout"].text, self._readers["stderr"].text

  def send_signal(self, number: int) -> None:
    if self.poll() is None:
      os.kill(self.pid, number)

  def terminate(self) -> None:
    self.send_signal(signal.SIGTERM)

  def kill(self) -> None:
    self.send_signal(signal.SIGKILL)


class Reader(threading.Thread):
  """Reads a pipe to its end."""

  def __init__(self, pipe):
    super().__init__(daemon=True)
    self.text, self._pipe = "", pipe
    self.start()

  def run(self):
    with self._pipe:
      self.text = self._pipe.read()
