"""One trainer per folder: a second one is refused while the first lives."""

import contextlib
import errno
import logging
import os
import socket
from pathlib import Path

import filelock

from jaxrl_llm.config import ConfigError
from jaxrl_llm.store import folders

NAME = "lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
logger = logging.getLogger(__name__)


class MovedError(RuntimeError):
  """The folder of a run is no longer at its path."""


_mine: dict[Path, tuple[int, int] | None] = {}  # device and inode of this process's folders


@contextlib.contextmanager
def held(workdir: str | Path):
  """Makes the folder, and holds its lock until the context ends.

  filelock holds it, but for a storage's, which is its own: it ends with the process however that
  ends, no child keeps it, and network file systems know it, too. The file stays and says who held
  it last. Reading a run needs no lock.

  Raises:
    ConfigError: another trainer holds it; the message names process and host.
    MovedError: in place of any error that came after the folder was moved away.
  """
  if storage := folders.storage_of(workdir):
    with storage.held(workdir):
      yield
    return
  workdir = Path(os.path.realpath(workdir))  # resolve() raises another error at a circle of links
  workdir.mkdir(parents=True, exist_ok=True)
  file, lock = workdir / NAME, filelock.FileLock(workdir / NAME)
  try:
    lock.acquire(timeout=0)
  except filelock.Timeout:
    raise ConfigError(refusal(workdir, file.read_text().strip() or "another process")) from None
  except (OSError, NotImplementedError) as error:
    if isinstance(error, OSError) and error.errno not in NO_LOCKS:
      raise
    logger.warning("%s: this file system has no locks (%s), so a second trainer would not be "
                   "refused. Fix: start only one.", workdir, error)
  try:
    file.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
    _mine[workdir] = _identity(workdir)
    with _moves_named(workdir):
      yield
  finally:
    _mine.pop(workdir, None)
    lock.release()


@contextlib.contextmanager
def _moves_named(workdir: Path):
  """Turns what a write raises in a folder that was moved away, Orbax's types, into a `MovedError`;
  its threads then log no traceback of it.
  """
  identity = _identity(workdir)

  def in_place(record: logging.LogRecord) -> bool:
    if record.exc_info is None or _identity(workdir) == identity:
      return True
    return str(workdir) not in f"{record.getMessage()} {record.exc_info[1]}"

  loggers = [logging.getLogger(name) for name in ("asyncio", "absl")]
  for library in loggers:
    library.addFilter(in_place)
  try:
    yield
  except MovedError:
    raise
  except Exception:
    check(workdir)
    raise
  finally:
    if _identity(workdir) == identity:  # else threads that end later still log
      for library in loggers:
        library.removeFilter(in_place)


def _identity(workdir: Path) -> tuple[int, int] | None:
  try:
    stat = workdir.stat()
  except OSError:
    return None
  return stat.st_dev, stat.st_ino


def check(workdir: str | Path) -> None:
  """Refuses to continue in a folder that was moved or replaced.

  Call it before each write, which would create the path again. A folder that this process does not
  hold is not checked.

  Raises:
    MovedError: naming the path.
  """
  if storage := folders.storage_of(workdir):
    storage.check(workdir)
    return
  held_before = _mine.get(Path(workdir).resolve())
  if held_before is not None and _identity(Path(workdir)) != held_before:
    raise MovedError(f"--workdir={workdir}: the folder was moved away or removed while the run "
                     "wrote there; nothing was begun anew in its place, where a checkpoint that "
                     "was being written may lie unfinished. Fix: start the same command with the "
                     "folder's new path, which resumes from its last checkpoint.")


def refusal(workdir: str | os.PathLike, holder: str) -> str:
  """Returns the message about a folder in which `holder` trains."""
  return (f"--workdir={workdir}: {holder} is training there. Fix: wait for it or end it, or use "
          "another --workdir.")
