"""The server of a sandbox: forks a child for each program, reads its output, and cleans up.

Only the standard library is used, because this file is loaded by its path. The server is
single-threaded, holds no secret, and reads only the bytes of a program's two streams.
"""

import json
import os
import select
import signal
import sys
import tempfile
import time

import linux
import sandbox_child
import seccomp

ANY_CHILD = 0x40000000  # __WALL: also children made by clone without SIGCHLD
ERR_BYTES = 4096
WORKER = "sandbox_worker.py"
# (isolation without which the setting would change the host, file, value)
SYSTEM_SETTINGS = (
    # If memory runs out, the kernel ends this process before the trainer.
    ("", "/proc/self/oom_score_adj", "1000"),
    # A program may not nest namespaces.
    ("user_namespace", "/proc/sys/user/max_user_namespaces", "0"),
    # System V memory would outlive its process, and no limit of a process counts it.
    ("ipc", "/proc/sys/kernel/shmmni", "0"),
    ("ipc", "/proc/sys/kernel/msgmni", "0"),
    ("ipc", "/proc/sys/kernel/sem", "250 32000 32 0"),
)


def isolate(isolation: set[str], settings: dict) -> tuple[str, int | None]:
  """Does the last steps of isolation, inside the namespaces, and brings `isolation` up to date.

  Returns:
    (directory, proc). `directory` is the parent of the programs' directories, or "" if each
    program has `linux.HOME` to itself. `proc` is a handle of /proc if processes must be searched
    for or counted, else None.
  """
  proc = None
  needs_proc = "processes" not in isolation or limit_counts_user(isolation)
  if needs_proc and os.path.isdir("/proc/self"):
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
  for needs, path, text in SYSTEM_SETTINGS:
    try:
      if not needs or needs in isolation:
        linux.write(path, text)
    except OSError:
      pass
  if "files" in isolation:
    try:
      linux.enter_private_files(settings["folders"])
    except linux.REFUSED:
      isolation.discard("files")
  try:
    if "no_new_privileges" not in settings["without"]:
      linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)  # inherited by every program
      isolation.add("no_new_privileges")
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
  except linux.REFUSED:
    pass
  try:
    if "system_calls" not in settings["without"]:
      seccomp.install()  # inherited by every program; the server itself needs none of these calls
      isolation.add("system_calls")
  except linux.REFUSED:
    pass
  # Keeps what a program prints before it is killed.
  sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
  if "files" in isolation:
    return "", proc
  directory = tempfile.mkdtemp(prefix="jaxrl-sandbox-", dir=settings["temporary"])
  os.chmod(directory, 0o711)
  return directory, proc


def limit_counts_user(isolation: set[str]) -> bool:
  """Returns whether the limit on processes counts all processes of the trainer's user.

  Newer kernels count the processes of the user namespace. Programs with a separate user have a
  separate count, and root has no limit.
  """
  if "user_namespace" in isolation:
    return "user" not in isolation and linux.kernel() < (5, 14)
  return "user" not in isolation and os.getuid() != 0


class Stream:
  """A pipe of which the first and the last bytes are kept."""

  def __init__(self, first: int, last: int):
    self.read_end, self.write_end = os.pipe()
    os.set_blocking(self.read_end, False)
    self.first, self.last = first, last
    self.head, self.tail, self.total = bytearray(), bytearray(), 0

  def pull(self) -> bool:
    """Reads what is there; returns False if nothing is, or at the end."""
    try:
      chunk = os.read(self.read_end, 1 << 16)
    except BlockingIOError:
      return False
    self.total += len(chunk)
    room = self.first - len(self.head)
    self.head += chunk[:room]
    self.tail = (self.tail + chunk[room:])[-self.last:]
    return bool(chunk)

  def close(self) -> tuple[bytes, bytes | None]:
    """Returns (head, tail) if bytes between them were dropped, else (all bytes, None)."""
    os.close(self.read_end)
    if self.total > len(self.head) + len(self.tail):
      return bytes(self.head), bytes(self.tail)
    return bytes(self.head + self.tail), None


class Server:
  """Runs the programs that arrive on a pipe, until it closes."""

  def __init__(self, requests: int, answers: int, isolation: set[str], directory: str,
               proc: int | None,
               settings: dict):
    self.requests, self.answers = requests, answers
    self.isolation, self.directory, self.proc = isolation, directory, proc
    self.settings = settings | {"uid": linux.NOBODY if "user" in isolation else None}
    self._reaped: tuple[int, float] | None = None

  def run(self) -> None:
    while (code := self._request()) is not None:
      home = self._open_home()
      answer = self._execute(code, home)
      self._close_home(home)
      if answer is None:
        break
      view = memoryview(answer)
      while view:
        view = view[os.write(self.answers, view):]

  def _request(self) -> bytes | None:
    length = self._exactly(8)
    return None if length is None else self._exactly(int.from_bytes(length, "big"))

  def _exactly(self, count: int) -> bytes | None:
    content = b""
    while len(content) < count:
      chunk = os.read(self.requests, count - len(content))
      if not chunk:
        return None
      content += chunk
    return content

  def _open_home(self) -> str:
    if "files" in self.isolation:
      linux.open_home(self.settings["directory_mb"], self.settings["uid"] or 0,
                      self.settings["folders"])
      return linux.HOME
    home = os.path.join(self.directory, "program")
    os.mkdir(home, 0o700)
    if self.settings["uid"]:
      os.chown(home, self.settings["uid"], self.settings["uid"])
    return home

  def _close_home(self, home: str) -> None:
    if "files" in self.isolation:
      linux.call("umount2", home.encode(), linux.MNT_DETACH)
    elif os.path.isdir(home):
      linux.remove_tree(home)

  def _execute(self, code: bytes, home: str) -> bytes | None:
    """Runs one program to its end or its time limit; returns None if the requests end."""
    keep = 4 * self.settings["output_chars"]  # bytes: a character has at most 4
    out, err = Stream(keep, keep), Stream(0, ERR_BYTES)
    settings = self.settings | {"processes": self.settings["processes"] + self._processes_before()}
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
      try:
        sandbox_child.become(code, out.write_end, err.write_end, home, settings)
      except BaseException as error:  # before the program began, as the trial program would show
        sandbox_child.say(error)
      finally:
        sandbox_child.leave(70)
    os.close(out.write_end)
    os.close(err.write_end)
    late = self._watch(pid, (out, err), begin + self.settings["timeout"])
    status, cpu = self._end_all(pid)
    seconds = time.monotonic() - begin
    for stream in (out, err):
      while stream.pull():
        pass
    (head, tail), (errors, last) = out.close(), err.close()
    errors = errors if last is None else last
    if late is None:
      return None
    fields = {"wait": status, "late": late, "cpu": cpu, "seconds": seconds, "head": len(head),
              "tail": None if tail is None else len(tail), "err": len(errors)}
    return json.dumps(fields).encode() + b"\n" + head + (tail or b"") + errors

  def _processes_before(self) -> int:
    """Returns how many processes and threads the limit on processes counts before a program."""
    if "user" in self.isolation:
      return 0
    if self.proc is not None and limit_counts_user(self.isolation):
      return linux.tasks_of_user(os.getuid(), self.proc, WORKER)
    return 2  # this process and the supervisor

  def _watch(self, pid: int, streams: tuple[Stream, ...], deadline: float) -> bool | None:
    """Reads until the program ends (False), its time does (True), or the requests do (None)."""
    try:
      handle = os.pidfd_open(pid)
    except linux.REFUSED:
      handle = None  # its end is looked for every 5 ms instead
    poll = select.poll()
    poll.register(self.requests, 0)
    for stream in streams:
      poll.register(stream.read_end, select.POLLIN)
    if handle is not None:
      poll.register(handle, select.POLLIN)
    by_number = {stream.read_end: stream for stream in streams}
    try:
      while (time_left := deadline - time.monotonic()) > 0:
        events = poll.poll(1000 * time_left if handle is not None else min(5, 1000 * time_left))
        for number, _ in events:
          if number == self.requests:
            return None
          if number == handle:
            return False
          if number in by_number and not by_number[number].pull():
            poll.unregister(number)
        if handle is None and self._has_ended(pid):
          return False
      return True
    finally:
      if handle is not None:
        os.close(handle)

  def _has_ended(self, pid: int) -> bool:
    if hasattr(os, "waitid"):
      return bool(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    ended_pid, status, usage = os.wait4(pid, os.WNOHANG)  # macOS, where this also reaps it
    if ended_pid:
      self._reaped = status, usage.ru_utime + usage.ru_stime
    return bool(ended_pid)

  def _end_all(self, program: int) -> tuple[int, float]:
    """Kills and reaps the program and every process that it has started.

    Returns:
      (wait status, seconds of processor time) of the program.
    """
    usage_of_program, self._reaped = self._reaped, None
    while True:
      for pid in self._victims(program):
        try:
          os.kill(pid, signal.SIGKILL)
        except OSError:
          pass  # it has ended meanwhile
      try:
        pid, status, usage = os.wait4(-1, ANY_CHILD)
      except ChildProcessError:
        return usage_of_program
      if pid == program:
        usage_of_program = status, usage.ru_utime + usage.ru_stime

  def _victims(self, program: int) -> list[int]:
    if "processes" in self.isolation:
      return [-1]  # all processes of this namespace except this one
    return [-program, program] if self.proc is None else linux.descendants(os.getpid(), self.proc)
