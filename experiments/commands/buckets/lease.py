"""The lock of a folder in a bucket: an object that its holder writes again every few seconds.

A bucket knows no process and no clock but its own, so that nothing there ends with the holder. It
has a conditional write: each write names the version that it replaces, and only one of two comes
first. A process that finds the object checks whether the holder is a process of this machine, and
otherwise waits for a new version: no clocks of two machines are compared.
"""

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from experiments.commands.buckets import paths

EVERY = 15.0  # seconds between two versions
VOID = 60.0  # seconds without a new version after which the holder counts as gone


class Holder(NamedTuple):
  """The content of the lease's object.

  Attributes:
    name: process and host, for messages.
    token: of this claim.
    machine: where process ids mean the same; empty: unknown.
    pid, begun: the process, and when the kernel started it, in its ticks.
    released: whether the holder gave it back.
    renewed: when this version was written, by the holder's clock.
  """

  name: str
  token: str
  machine: str
  pid: int
  begun: str
  released: bool
  renewed: str


class HeldError(Exception):
  """Another trainer holds it; the text names process and host."""


class Lease:
  """A claim on an object; `release` ends it.

  Args:
    path: path of the object.

  Raises:
    HeldError: a living trainer has it.
  """

  def __init__(self, path: paths.BucketPath):
    self._path, self._token, self._machine = path, uuid.uuid4().hex, _machine()
    self._guard, self._ended = threading.Lock(), threading.Event()
    self._lost: str | None = None
    previous, generation = _read(path)
    if previous is not None and not previous.released:
      _wait_for_end(path, previous, generation)
    try:
      self._generation = self._write(generation)
    except paths.LostError:
      holder, _ = _read(path)
      raise HeldError(holder.name if holder else "another process") from None
    threading.Thread(target=self._renew_again, daemon=True).start()

  def check(self) -> None:
    """Raises HeldError if another trainer has taken the folder; renews a claim that is late."""
    if time.monotonic() - self._last > VOID / 2:
      self._renew()
    if self._lost:
      raise HeldError(self._lost)

  def release(self) -> None:
    """Says that the folder is free; the object stays and names the last holder."""
    self._ended.set()
    try:
      with self._guard:
        self._write(self._generation, released=True)
    except OSError:  # it is another one's, or will be void
      pass

  def _renew_again(self) -> None:
    while not self._ended.wait(EVERY) and not self._lost:
      try:
        self._renew()
      except OSError:
        pass  # a network error; `check` retries, and reports it

  def _renew(self) -> None:
    with self._guard:
      if self._ended.is_set():
        return
      try:
        self._generation = self._write(self._generation)
      except paths.LostError:
        holder, self._generation = _read(self._path)
        if holder is None or holder.token != self._token:  # else: ours, whose answer got lost
          self._lost = holder.name if holder else "nobody"

  def _write(self, generation: bytes, released: bool = False) -> bytes:
    begun = time.monotonic()
    holder = Holder(f"process {os.getpid()} on {socket.gethostname()}", self._token, self._machine,
                    os.getpid(), _start_time(os.getpid()), released,
                    time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    text = json.dumps(holder._asdict()) + "\n"
    generation = paths.write(self._path, text.encode(), generation)
    self._last = begun
    return generation


def _wait_for_end(path: paths.BucketPath, holder: Holder, generation: bytes) -> None:
  """Returns when the holder is gone.

  Raises:
    HeldError: it lives.
  """
  if holder.machine and holder.machine == _machine():
    if _start_time(holder.pid) == holder.begun:
      raise HeldError(holder.name)
    return
  end = time.monotonic() + VOID
  while time.monotonic() < end:
    time.sleep(EVERY / 5)
    now, new_generation = _read(path)
    if now is None or now.released:
      return
    if new_generation != generation:
      raise HeldError(now.name)


def _read(path: paths.BucketPath) -> tuple[Holder | None, bytes]:
  """Returns (holder, generation); None if there is none, or none that can be read."""
  content, generation = paths.read(path)
  try:
    values: dict[str, Any] = json.loads(content or b"")
    return Holder(**values), generation
  except (ValueError, TypeError):
    return None, generation


def _machine() -> str:
  """Names the machine, its boot and the namespace of process ids; empty where it is unknown."""
  try:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
  except OSError:
    return ""


def _start_time(pid: int) -> str:
  """Returns when a process was started, in ticks since the boot; empty if there is none."""
  try:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
  except (OSError, IndexError):
    return ""
