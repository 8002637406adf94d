"""Who takes part, and who has died: a connection of each process to process 0.

JAX's own service ends processes by an abort that names nobody, after minutes. A connection ends
immediately when a process does, however it ends. One line of JSON is a message: [kind, text].
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable

from experiments.commands.start_up import AbsentError
from jaxrl_llm.config import ConfigError

# A host that lost power closes no connection: its silence ends it after IDLE + PROBES * BETWEEN s.
IDLE, BETWEEN, PROBES = 10, 5, 5
RETRY = 0.2  # seconds between two attempts to reach process 0
HELLO, BEGIN, DONE, FAILED, ENDED = "hello", "begin", "done", "failed", "ended"


class RollCall:
  """The connections of one process: of process 0 to all others, of another one to process 0.

  Args:
    address: host:port where process 0 listens.
    count, index: of the processes; which one this is.
    on_end: called in a thread with one line, once, when another process has died or failed.
  """

  def __init__(self, address: str, count: int, index: int, on_end: Callable[[str], None]):
    self._address, self._count, self._index, self._on_end = address, count, index, on_end
    self._me = f"process {index} of {count} ({socket.gethostname()}, pid {os.getpid()})"
    self._peers: dict[int, _Peer] = {}
    self._guard, self._over = threading.Lock(), False

  def begin(self, wait: float) -> None:
    """Returns when all processes have joined.

    Raises:
      AbsentError: some have not, after `wait` seconds.
    """
    end = time.monotonic() + wait
    if self._index:
      self._peers[0] = self._connect(end, wait)
    else:
      self._accept(end, wait)
    for peer_index, peer in self._peers.items():
      threading.Thread(target=self._listen, args=(peer_index, peer), daemon=True,
                       name=f"roll-call-{peer_index}").start()

  def leave(self, failure: str | None = None) -> None:
    """Says that this process is done, or why it failed, and stops watching the others."""
    with self._guard:
      self._over = True
    for peer in self._peers.values():
      if failure is None:
        peer.say(DONE, "")
      else:  # process 0 tells the others
        peer.say(FAILED if self._index else ENDED, f"{self._me} ended: {failure}")

  def _server(self, port: int, family: int) -> socket.socket:
    """Returns a socket at the roll call's port."""
    try:
      return socket.create_server(("", port), family=family, backlog=self._count)
    except OSError as error:
      raise ConfigError(f"the roll call cannot have port {port}, the one beside --coordinator's: "
                        f"{error.strerror}. Fix: --coordinator with another port.") from error

  def _accept(self, end: float, wait: float) -> None:
    host, port = self._address.rsplit(":", 1)
    family = self._family(host, int(port), end, wait)
    with self._server(int(port), family) as server:
      server.settimeout(RETRY)
      while len(self._peers) < self._count - 1:
        if time.monotonic() > end:
          raise self._absent(wait)
        with contextlib.suppress(OSError):  # no process connected, or it left again
          peer = _Peer(server.accept()[0])
          # In a thread, so that a stranger who says nothing holds up no process of the run.
          threading.Thread(target=self._welcome, args=(peer,), daemon=True).start()
    for peer in self._peers.values():
      peer.say(BEGIN, self._me)

  def _family(self, host: str, port: int, end: float, wait: float) -> int:
    """Returns the kind of address that the name has; a cluster may enter a new host's name late."""
    while True:
      try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
      except socket.gaierror as error:
        if time.monotonic() > end:
          raise AbsentError(f"{self._address}: process 0 cannot resolve this name after {wait:g} s "
                            f"({error.strerror}). Fix: --coordinator=<host>:<port> with the "
                            "address of process 0.") from None
      time.sleep(RETRY)

  def _welcome(self, peer: "_Peer") -> None:
    """Takes a connection in, if it is one of the run's processes."""
    kind, text = peer.hear(timeout=5.0) or ("", "")
    number, _, name = text.partition(" ")
    is_member = kind == HELLO and number.isdecimal() and 0 < int(number[:9]) < self._count
    with self._guard:
      is_member = is_member and int(number) not in self._peers
      if is_member:
        peer.name = name
        self._peers[int(number)] = peer
    if not is_member:
      peer.close()

  def _absent(self, wait: float) -> AbsentError:
    missing = ", ".join(str(i) for i in range(1, self._count) if i not in self._peers)
    error = AbsentError(
        f"process {missing} of {self._count} did not come within {wait:g} s; process 0 waits on "
        f"port {self._address.rsplit(':', 1)[1]}. Fix: start all {self._count} processes, or the "
        "flags --coordinator, --processes and --process.")
    self.leave(str(error))
    return error

  def _connect(self, end: float, wait: float) -> "_Peer":
    host, port = self._address.rsplit(":", 1)
    while True:
      try:
        peer = _Peer(socket.create_connection((host, int(port)), timeout=5.0))
        peer.say(HELLO, f"{self._index} {self._me}")
        kind, text = peer.hear(timeout=max(1.0, end + 5.0 - time.monotonic())) or ("", "")
        if kind == BEGIN:
          peer.name = text
          return peer
        if kind == ENDED:
          raise AbsentError(text)
      except OSError:
        pass
      if time.monotonic() > end:
        raise AbsentError(
            f"process 0 of {self._count} did not come within {wait:g} s: process {self._index} "
            f"cannot reach {self._address}. Fix: start process 0, or open this port, or the flags "
            "--coordinator, --processes and --process.")
      time.sleep(RETRY)

  def _listen(self, peer_index: int, peer: "_Peer") -> None:
    """Waits for what the other process says; its silence ends this one."""
    kind, text = peer.hear() or ("", "")
    if kind == DONE:
      return
    self._end(peer_index, text if kind in (FAILED, ENDED) else f"{peer.name} died")

  def _end(self, dead: int, line: str) -> None:
    with self._guard:
      if self._over:
        return
      self._over = True
    for peer_index, peer in self._peers.items():
      if peer_index != dead and not self._index:
        peer.say(ENDED, line)
    self._on_end(line)


class _Peer:
  """A connection to another process."""

  def __init__(self, connection: socket.socket):
    self.name = "a process"
    self._connection = connection
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", IDLE), ("TCP_KEEPINTVL", BETWEEN),
                          ("TCP_KEEPCNT", PROBES)):
      if hasattr(socket, option):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    self._lines = connection.makefile("r", encoding="utf-8", errors="replace")

  def say(self, kind: str, text: str) -> None:
    """Sends a message; the listener notices an ended connection."""
    try:
      self._connection.sendall((json.dumps([kind, text]) + "\n").encode())
    except OSError:
      pass

  def hear(self, timeout: float | None = None) -> tuple[str, str] | None:
    """Returns (kind, text) of the next message; None if the connection ended or the message is
    invalid.
    """
    self._connection.settimeout(timeout)
    try:
      kind, text = json.loads(self._lines.readline(4096))
      return str(kind), str(text)
    except (OSError, ValueError, TypeError, RecursionError):
      return None
    finally:
      with contextlib.suppress(OSError):  # closed meanwhile
        self._connection.settimeout(None)

  def close(self) -> None:
    self._connection.close()
