"""One trainer per folder: a second one is refused while the first lives."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import threading
from pathlib import Path

from jaxrl_llm.config import ConfigError

NAME = "lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
HELD = (errno.EACCES, errno.EAGAIN)
logger = logging.getLogger(__name__)
# The folders of this process. The kernel does not refuse a process its own lock, and would drop the
# lock if the file were opened and closed a second time.
_mine: set[Path] = set()
_guard = threading.Lock()


@contextlib.contextmanager
def held(workdir: str | Path):
  """Makes the folder, and holds its lock until the context ends.

  It is a POSIX record lock: it belongs to this process alone. It ends with the process however that
  ends, no child that outlives it keeps it, and network file systems know it, too. The file stays
  and says who held it last. Reading a run needs no lock.

  Raises:
    ConfigError: another trainer holds it; the message names process and host.
  """
  workdir = Path(workdir).resolve()
  workdir.mkdir(parents=True, exist_ok=True)
  with _guard:
    if workdir in _mine:
      raise ConfigError(_refusal(workdir, f"process {os.getpid()} (this one)"))
    _mine.add(workdir)
  try:
    number = os.open(workdir / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
      _lock(number, workdir)
      os.truncate(number, 0)
      os.pwrite(number, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
      yield
    finally:
      os.close(number)
  finally:
    with _guard:
      _mine.discard(workdir)


def _lock(number: int, workdir: Path) -> None:
  try:
    fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    if error.errno in HELD:
      holder = os.pread(number, 200, 0).decode(errors="replace").strip()
      raise ConfigError(_refusal(workdir, holder or "another process")) from None
    if error.errno not in NO_LOCKS:
      raise
    logger.warning("%s: this file system has no locks (%s), so a second trainer would not be "
                   "refused. Fix: start only one.", workdir, error.strerror)


def _refusal(workdir: Path, holder: str) -> str:
  return (f"--workdir={workdir}: {holder} is training there. Fix: wait for it or end it, or use "
          "another --workdir.")
