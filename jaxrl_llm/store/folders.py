"""Folders of a file system, and of a storage that addresses name (gs://...), by one set of names.

A path is a `pathlib.Path`, or the storage's own, which has the same methods; what the two do
differently a storage says itself. Commands bring the one for Google's buckets
(experiments/commands/buckets). Files that a library writes go to a local folder first, which is
then copied there.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from jaxrl_llm.config import ConfigError

STORAGES: dict[str, "Storage"] = {}  # by the prefix of their addresses


class Storage(Protocol):
  """Where the addresses of a prefix lead. A file there appears complete or not at all, and is never
  appended to.
  """

  def path(self, address: str | os.PathLike) -> Any:
    """Returns a path with the methods of `pathlib.Path`, and `rmtree`."""

  def write(self, path: str | os.PathLike, content: bytes) -> None:
    """Writes a file, or replaces it."""

  def names(self, folder: str) -> list[str]:
    """Returns the names of a folder's files; none without a folder."""

  def held(self, workdir: str | os.PathLike) -> contextlib.AbstractContextManager:
    """As `lock.held`, of a folder that need not exist."""

  def check(self, workdir: str | os.PathLike) -> None:
    """As `lock.check`."""

  def manager(self, directory: Any, keep: int) -> Any:
    """Returns the part of ocp.CheckpointManager that `checkpoints.Checkpoints` uses."""

  def complete(self, path: Any) -> bool:
    """Returns whether a tree that Orbax saved is complete."""

  def iterations(self, directory: Any) -> list[int]:
    """Returns the iterations that were saved in a folder completely, in order."""

  def discard(self, path: Any) -> None:
    """Removes a tree that Orbax saved, if there is one."""


def storage_of(address: str | os.PathLike) -> Storage | None:
  """Returns the storage of an address; None: a file system's."""
  return next((storage for prefix, storage in STORAGES.items()
               if os.fspath(address).startswith(prefix)), None)


def is_bucket(address: str | os.PathLike) -> bool:
  """Returns whether an address is in a storage."""
  return storage_of(address) is not None


def path_of(address: str | os.PathLike) -> Any:
  """Returns the path of an address: a Path, or a storage's own, which has the same methods.

  Raises:
    ConfigError: an address of another service, such as s3://.
  """
  if storage := storage_of(address):
    return storage.path(address)
  if "://" in os.fspath(address):
    raise ConfigError(refusal("", os.fspath(address)))
  return Path(address).expanduser()


def refusal(key: str, address: str) -> str:
  """Returns the message about an address of a service that is not read or written.

  Args:
    key: the flag or config key, with "=" or " = "; empty: unknown.
  """
  if address.startswith("gs://"):
    return (f"{key}{address}: nothing that reads buckets is loaded. Fix: import "
            "experiments.commands, as commands do, or a folder on which the bucket is mounted.")
  return (f"{key}{address}: of addresses, only those of Google's buckets are read and written. "
          "Fix: gs://<bucket>/<folder>, or a folder, on which another service may be mounted.")


def remove(path: Any) -> None:
  """Removes a folder with all that is in it.

  Raises:
    FileNotFoundError: there is none.
  """
  if isinstance(path, Path):
    shutil.rmtree(path)
  else:
    path.rmtree()


def move(path: Any, to: Any) -> None:
  """Gives a folder another name; in a bucket, its objects are copied one after the other."""
  if isinstance(path, Path):
    shutil.move(path, to)
  else:
    path.rename(to)


@contextlib.contextmanager
def local(path: Any) -> Iterator[Path]:
  """Yields a local folder for a library that writes files: `path` itself, or an empty one, whose
  files are put to `path` at the end.
  """
  if isinstance(path, Path):
    yield path
    return
  with tempfile.TemporaryDirectory() as folder:
    yield Path(folder)
    put(Path(folder), path)


def put(folder: Path, path: Any) -> None:
  """Writes the files of a local folder to a storage, replacing files of the same names."""
  for file in sorted(folder.rglob("*")):
    if file.is_file():
      (path / file.relative_to(folder).as_posix()).write_bytes(file.read_bytes())
