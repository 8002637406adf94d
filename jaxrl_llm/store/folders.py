"""Folders of two kinds: of a file system, and of a bucket (gs://...), by one set of names.

A path is a `pathlib.Path`, or a `buckets.BucketPath`, which has the same methods; what the two do
differently is here and in files.py, lock.py and checkpoints.py. Files that a library writes go to a
local folder first, which is then copied into the bucket.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_llm.config import ConfigError

if TYPE_CHECKING:
  from jaxrl_llm.store.buckets import BucketPath

BUCKET = "gs://"


def is_bucket(address: str | os.PathLike) -> bool:
  """Returns whether an address is in a bucket."""
  return os.fspath(address).startswith(BUCKET)


def path_of(address: str | os.PathLike) -> Any:
  """Returns the path of an address: a Path, or a BucketPath, which has the same methods.

  Raises:
    ConfigError: an address of another service, such as s3://.
  """
  if not is_bucket(address):
    if "://" in os.fspath(address):
      raise ConfigError(refusal("", os.fspath(address)))
    return Path(address).expanduser()
  from jaxrl_llm.store import buckets  # here: it replaces Orbax's own paths of buckets

  return buckets.BucketPath(address)


def refusal(key: str, address: str) -> str:
  """Returns the message about an address of a service that is not read or written.

  Args:
    key: the flag or config key, with "=" or " = "; empty: unknown.
  """
  return (f"{key}{address}: of addresses, only those of Google's buckets are read and written. "
          "Fix: gs://<bucket>/<folder>, or a folder, on which another service may be mounted.")


def remove(path: "Path | BucketPath") -> None:
  """Removes a folder with all that is in it.

  Raises:
    FileNotFoundError: there is none.
  """
  if isinstance(path, Path):
    shutil.rmtree(path)
  else:
    path.rmtree()


def move(path: "Path | BucketPath", to: "Path | BucketPath") -> None:
  """Gives a folder another name; in a bucket, its objects are copied one after the other."""
  if isinstance(path, Path):
    shutil.move(path, to)
  else:
    path.rename(to)


@contextlib.contextmanager
def local(path: "Path | BucketPath") -> Iterator[Path]:
  """Yields a local folder for a library that writes files: `path` itself, or an empty one, whose
  files are put to `path` at the end.
  """
  if isinstance(path, Path):
    yield path
    return
  with tempfile.TemporaryDirectory() as folder:
    yield Path(folder)
    put(Path(folder), path)


def put(folder: Path, path: "BucketPath") -> None:
  """Writes the files of a local folder to a bucket, replacing files of the same names."""
  for file in sorted(folder.rglob("*")):
    if file.is_file():
      (path / file.relative_to(folder).as_posix()).write_bytes(file.read_bytes())
