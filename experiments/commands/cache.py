"""The folder of compiled programs that a user's runs share.

`~/.cache/jaxrl_llm`, or what the environment variable JAXRL_LLM_CACHE names; empty: no folder. It
speeds up a start and never changes a result. Its content is run and read without checks, so no
other user may write there. `python experiments/cache.py` shows and clears it.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax

VARIABLE = "JAXRL_LLM_CACHE"
PROGRAMS = "xla"
PROGRAM_BYTES = 2 << 30
logger = logging.getLogger(__name__)


def programs_folder() -> Path | None:
  """Returns the folder of compiled programs, which is made; None if the environment wants none.

  A folder that cannot be written is a warning, because a run does without it.
  """
  try:
    path = root()
    if path is None:
      return None
    path = path / PROGRAMS
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
      return path
  except (OSError, RuntimeError) as error:
    logger.warning("no folder for compiled programs, so a start takes longer: %s. Fix: %s=<a "
                   "folder>, or %s= (empty) for none.", error, VARIABLE, VARIABLE)
    return None


def root() -> Path | None:
  """Returns the shared folder, which need not exist; None if the environment wants none.

  Raises:
    RuntimeError: the user has no home folder.
  """
  folder = os.environ.get(VARIABLE)
  if folder is not None:
    return Path(folder).expanduser().absolute() if folder else None
  base = os.environ.get("XDG_CACHE_HOME", "")
  return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "jaxrl_llm"


def keep_programs() -> None:
  """Makes this process keep compiled programs in the shared folder, and take them from there.

  A program that a killed process left incomplete is compiled again at each start, of which JAX
  warns, until it is pruned or the folder cleared. Does nothing if JAX has a cache already
  (JAX_COMPILATION_CACHE_DIR), or if the environment wants no folder. Call it before anything is
  compiled.
  """
  if jax.config.jax_compilation_cache_dir is not None:
    return
  path = programs_folder()
  if path is None:
    return
  try:
    # JAX's own bound takes a lock for each read, and a process that is killed between its two files
    # of an entry makes every later write fail. Programs are small, so a look at each start is
    # enough.
    prune(path.glob("*-cache"), PROGRAM_BYTES)
  except OSError as error:
    logger.warning("%s could not be cleaned: %s", path, error)
  jax.config.update("jax_compilation_cache_dir", str(path))
  # A run compiles many programs in less than the second from which JAX would keep them.
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def prune(entries: Iterable[Path], limit: int) -> None:
  """Removes the files that were used least recently until `limit` bytes are left."""
  used = sorted((max(stat.st_mtime, stat.st_atime), stat.st_size, path)
                for path, stat in stats(entries))
  total = sum(size for _, size, _ in used)
  for _, size, path in used:
    if total <= limit:
      return
    path.unlink(missing_ok=True)
    total -= size


def stats(entries: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
  """Yields each file with its facts, but for those that another process removed meanwhile."""
  for path in entries:
    with contextlib.suppress(OSError):
      yield path, path.stat()
