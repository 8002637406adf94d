"""Warm starts that runs share: one that an earlier run trained from the same inputs is copied.

An entry is a copy of `workdir/warm_start`, named by a hash of all that it was made of, and appears
complete or not at all. Training gives the same bytes, so a run does not depend on what was there.
"""

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock

from jaxrl_llm.store import cache, checksums, disk

LIMIT_BYTES = 1 << 30
logger = logging.getLogger(__name__)


@contextlib.contextmanager
def reserved(entry: Path | None) -> Iterator[None]:
  """Makes other runs of this machine that want the same start wait, and then copy it. Where the
  folder has no file locks, each run trains.
  """
  with contextlib.ExitStack() as stack:
    if entry is not None:
      with contextlib.suppress(OSError, NotImplementedError):
        stack.enter_context(filelock.FileLock(f"{entry}.lock"))
    yield


def fetch(entry: Path | None, path: Path) -> bool:
  """Copies a start to `path`, which appears complete or not at all; returns whether there was one.
  """
  temporary = path.with_name(f"{path.name}.copy")
  cache.remove(temporary)  # of a run that was killed while it copied
  if entry is None or not entry.is_dir():
    return False
  try:
    shutil.copytree(entry, temporary)
    if damage := checksums.damage(temporary):
      raise ValueError(damage)
  except (OSError, ValueError) as error:
    cache.remove(temporary)
    if disk.is_full(error):
      raise
    logger.warning("the shared warm start %s is damaged (%s), so it is trained again", entry,
                   str(error)[:200])
    cache.remove(entry)
    return False
  temporary.rename(path)
  with contextlib.suppress(OSError):  # another run may remove it
    (entry / checksums.NAME).touch()  # it was used now
  return True


def store(entry: Path | None, path: Path) -> None:
  """Copies the start at `path` into the shared folder, unless it is too large."""
  if entry is None or cache.size_and_time(path)[0] > LIMIT_BYTES:
    return
  temporary = Path(tempfile.mkdtemp(dir=entry.parent))
  try:
    shutil.copytree(path, temporary / entry.name)
    (temporary / entry.name).rename(entry)
  except OSError as error:
    logger.warning("the warm start is not shared with other runs: %s", error)
  cache.remove(temporary)
  cache.prune((folder for folder in entry.parent.iterdir() if folder.is_dir()), LIMIT_BYTES)
