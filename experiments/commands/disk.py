"""A full disk, or a file beyond its limit of size, ends a run with one line."""

import contextlib
import errno
import logging
import os
from pathlib import Path

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
TEXTS = tuple(os.strerror(number) for number in FULL)  # Orbax hands on only the text


class DiskError(RuntimeError):
  """There is no room to write; the message names the folder, the cause and the fix."""


@contextlib.contextmanager
def named(workdir: str | Path):
  """Turns the errors of a full disk into a `DiskError`; others pass.

  Every file is written completely or not at all, and a torn last line of metrics.jsonl is dropped
  when it is opened again, so that the run resumes from its last checkpoint.

  Raises:
    DiskError: naming `workdir`.
  """
  for name in ("asyncio", "absl"):
    logging.getLogger(name).addFilter(_has_another_cause)
  try:
    yield
  except Exception as error:  # Orbax raises several types
    cause = _cause(error)
    if cause is None:
      raise
    raise DiskError(
        f"--workdir={workdir}: {cause}. What was written before is whole. Fix: free space, raise "
        "the limit (ulimit -f), or lower checkpoint.keep; then start the same command again, which "
        "resumes from the last checkpoint.") from error


def _has_another_cause(record: logging.LogRecord) -> bool:
  """Keeps Orbax and asyncio from logging a traceback of each write that failed with the first."""
  return record.exc_info is None or _cause(record.exc_info[1]) is None


def _cause(error: BaseException | None) -> str | None:
  """Returns the system's message if an error, or a cause of it, is a full disk; else None."""
  visited_ids: set[int] = set()
  while error is not None and id(error) not in visited_ids:
    visited_ids.add(id(error))
    if isinstance(error, OSError) and error.errno in FULL:
      return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    reasons = [text for text in TEXTS if text in str(error)]
    if reasons:
      return reasons[0]
    error = error.__cause__ or error.__context__
  return None
