"""Folders in a bucket of Cloud Storage: paths that begin with gs://, by tensorstore's driver.

Orbax reads and writes arrays by the same driver, so that nothing else need be installed, and the
credentials are what it finds: the account of the machine, `gcloud auth application-default login`,
or a file named by GOOGLE_APPLICATION_CREDENTIALS. A bucket has objects, no folders: an object
appears complete or not at all, is never appended to, and a read after its write returns it. A
folder that was made is an object whose name ends in "/".
"""

import contextlib
import errno
import fnmatch
import functools
import io
import os
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, NoReturn

import tensorstore as ts
from etils import epath
from etils.epath import gpath, stat_utils
from etils.epath.backend import Backend

PREFIX = "gs://"
FIRST_ANSWER = 12.0  # seconds


@epath.register_path_cls(PREFIX)
class BucketPath(gpath.PosixGPath):
  """A pathlib-like path of an object or a folder in a bucket, which Orbax takes, too."""

  @property
  def _backend(self) -> Backend:
    return _BACKEND

  def resolve(self, strict: bool = False) -> "BucketPath":
    """Returns the path itself: there are no links."""
    del strict
    return self

  absolute = resolve

  def is_file(self) -> bool:
    """Returns whether there is an object of this name."""
    store, key = _place(self)
    return bool(_list_names(store, key, key + "\0"))


class LostError(OSError):
  """A conditional write came after another one."""


def read(path: epath.PathLike, known: bytes | None = None) -> tuple[bytes | None, bytes]:
  """Returns (content, generation) of an object; None if there is none, or if it is the known one.

  Args:
    known: a generation whose content need not be read again.
  """
  store, key = _place(path)
  with _path_in_errors(path):
    answer = store.read(key, if_not_equal=known).result()
  return answer.value if answer.state == "value" else None, answer.stamp.generation


def names(path: epath.PathLike) -> list[str]:
  """Returns the names of a folder's objects, from the folder on; of an object: the empty one."""
  return [""] if BucketPath(path).is_file() else [name for name in _below(path)
                                                  if not name.endswith("/")]


def write(path: epath.PathLike, content: bytes | None, generation: bytes | None = None) -> bytes:
  """Writes an object, or removes it if `content` is None; returns its new generation.

  Args:
    generation: of the object (or of its absence) which is replaced, as `read` gave it; None: any
      version.

  Raises:
    LostError: another writer was first.
  """
  store, key = _place(path)
  with _path_in_errors(path):
    stamp = store.write(key, content, if_equal=generation).result()
  if not stamp.generation:
    raise LostError(errno.EEXIST, "another writer was first", str(path))
  return stamp.generation


@contextlib.contextmanager
def _path_in_errors(path: epath.PathLike) -> Iterator[None]:
  """Turns what tensorstore raises into an OSError that names the path."""
  try:
    yield
  except OSError:
    raise
  except Exception as error:  # ValueError for most answers of a server
    text = " ".join(str(error).split())[:300]
    raise OSError(errno.EIO, text, os.fspath(path)) from error


def _place(path: epath.PathLike) -> tuple[ts.KvStore, str]:
  """Returns (the bucket, the name in it) of a path."""
  bucket, _, key = os.fspath(path).removeprefix(PREFIX).partition("/")
  return _store(bucket), key.rstrip("/")


@functools.cache
def _store(bucket: str) -> ts.KvStore:
  with _path_in_errors(PREFIX + bucket):
    store = ts.KvStore.open({"driver": "gcs", "bucket": bucket}).result()
    try:  # tensorstore alone tries for ten minutes, without a word
      store.list(ts.KvStore.KeyRange("a", "a\0")).result(timeout=FIRST_ANSWER)
    except TimeoutError:
      raise OSError(errno.ETIMEDOUT, f"no answer within {FIRST_ANSWER:g} s. Fix: the name of the "
                    "bucket, the network, or access (gcloud auth application-default login)",
                    PREFIX + bucket) from None
    return store


def _list_names(store: ts.KvStore, begin: str, end: str) -> list[str]:
  """Returns the names from `begin` to before `end`, sorted."""
  with _path_in_errors(begin):
    keys = store.list(ts.KvStore.KeyRange(begin, end)).result()
  return sorted(key.decode() for key in keys)


def _below(path: epath.PathLike, prefix: str = "") -> list[str]:
  """Returns the names inside a folder that begin with `prefix`, from the folder on, without its
  mark.
  """
  store, key = _place(path)
  folder = f"{key}/" if key else ""
  begin = folder + prefix
  names = _list_names(store, begin, _after(begin))
  return [name[len(folder):] for name in names if name != folder]


def _after(prefix: str) -> str:
  """Returns the first text after all that begin with `prefix`; of the empty one: no bound."""
  return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""


class _Put(io.BytesIO):
  """A file to write: an object once it is closed, and nothing if an error ends it before."""

  def __init__(self, path: epath.PathLike):
    super().__init__()
    self._path: epath.PathLike | None = path

  def __exit__(self, kind, error, trace) -> None:
    if kind is not None:
      self._path = None
    self.close()

  def close(self) -> None:
    path, self._path = self._path, None
    if path is not None:
      write(path, self.getvalue())
    super().close()


class _Store(Backend):
  """The operations of `epath` in a bucket."""

  def open(self, path: epath.PathLike, mode: str) -> Any:
    if "a" in mode:
      raise OSError(errno.ENOTSUP, "an object of a bucket is never appended to", os.fspath(path))
    if "w" in mode:
      file = _Put(path)
      return file if "b" in mode else io.TextIOWrapper(file, "utf-8", write_through=True)
    content, _ = read(path)
    if content is None:
      _absent(path)
    return io.BytesIO(content) if "b" in mode else io.StringIO(content.decode())

  def exists(self, path: epath.PathLike) -> bool:
    store, key = _place(path)
    return bool(_list_names(store, key, key + "\0")) or self.isdir(path)

  def isdir(self, path: epath.PathLike) -> bool:
    store, key = _place(path)
    mark = f"{key}/"
    return not key or bool(_list_names(store, mark, mark + "\0") or _below(path))

  def listdir(self, path: epath.PathLike) -> list[str]:
    if not self.isdir(path):
      _absent(path)
    return sorted({name.partition("/")[0] for name in _below(path)})

  def glob(self, path: epath.PathLike) -> list[str]:
    parts = os.fspath(path).split("/")
    first = next((i for i, part in enumerate(parts) if set(part) & set("*?[")), len(parts) - 1)
    folder, pattern = "/".join(parts[:first]), parts[first:]
    literal = pattern[0][:min((pattern[0] + mark).index(mark) for mark in "*?[")]
    names = {"/".join(name.split("/")[:len(pattern)]) for name in _below(folder, literal)}
    return [f"{folder}/{name}" for name in sorted(names)
            if len(name.split("/")) == len(pattern) and all(
                map(fnmatch.fnmatchcase, name.split("/"), pattern))]

  def walk(self, top: epath.PathLike, *, top_down: bool = True,
           on_error=None) -> Iterator[tuple[epath.PathLike, list[str], list[str]]]:
    del on_error
    names = [PurePosixPath(name) for name in _below(top)]
    folders = sorted({parent for name in names for parent in name.parents},
                     key=lambda folder: len(folder.parts), reverse=not top_down)
    for folder in folders:
      inside = [parent.name for parent in folders if parent != folder and parent.parent == folder]
      files = [name.name for name in names if name.parent == folder and name not in folders]
      yield os.path.join(os.fspath(top), *folder.parts), inside, files

  def makedirs(self, path: epath.PathLike, *, exist_ok: bool = False, mode=None) -> None:
    self.mkdir(path, exist_ok=exist_ok, mode=mode)

  def mkdir(self, path: epath.PathLike, *, exist_ok: bool = False, mode=None) -> None:
    del mode
    store, key = _place(path)
    if not exist_ok and self.exists(path):
      raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
    if key and not self.isdir(path):
      with _path_in_errors(path):
        store.write(f"{key}/", b"").result()

  def rmtree(self, path: epath.PathLike) -> None:
    if not self.exists(path):
      _absent(path)
    store, key = _place(path)
    with _path_in_errors(path):
      store.delete_range(ts.KvStore.KeyRange(f"{key}/", _after(f"{key}/"))).result()
      store.write(key, None).result()

  def remove(self, path: epath.PathLike) -> None:
    if read(path)[0] is None:
      _absent(path)
    write(path, None)

  def rename(self, path: epath.PathLike, dst: epath.PathLike) -> None:
    if self.exists(dst):
      raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(dst))
    self.replace(path, dst)

  def replace(self, path: epath.PathLike, dst: epath.PathLike) -> None:
    """Copies one object after the other and removes the old ones: this is not atomic."""
    names = [""] if BucketPath(path).is_file() else [f"/{name}" for name in _below(path)]
    for name in names or _absent(path):
      content, _ = read(os.fspath(path) + name)
      write(os.fspath(dst) + name, content)
    self.rmtree(path)

  def copy(self, path: epath.PathLike, dst: epath.PathLike, overwrite: bool) -> None:
    if not overwrite and self.exists(dst):
      raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(dst))
    epath.Path(dst).write_bytes(epath.Path(path).read_bytes())

  def stat(self, path: epath.PathLike) -> stat_utils.StatResult:
    content, is_folder = read(path)[0], False
    if content is None:
      is_folder = self.isdir(path) or _absent(path)
    return stat_utils.StatResult(is_directory=is_folder, length=len(content or b""),
                                 mtime=int(time.time()))


def _absent(path: epath.PathLike) -> NoReturn:
  raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


_BACKEND = _Store()


def forget() -> None:
  """Opens buckets anew, for tests that change the server's address."""
  _store.cache_clear()
