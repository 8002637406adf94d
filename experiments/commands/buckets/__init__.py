"""Run folders in Google's buckets: addresses that begin with gs://, for jaxrl_llm/store/folders.py.

  paths.py        paths, as pathlib has them, by tensorstore's driver
  lease.py        one trainer per folder
  checkpoints.py  Orbax's checkpoints

They are imported when an address is used.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxrl_llm.config import ConfigError
from jaxrl_llm.store import folders, lock

if TYPE_CHECKING:
  from experiments.commands.buckets.lease import Lease

PREFIX = "gs://"
_leases: dict[str, "Lease"] = {}  # of the folders that this process holds


class Buckets(folders.Storage):
  """The storage of gs:// addresses."""

  def path(self, address: str | os.PathLike) -> Any:
    from experiments.commands.buckets import paths  # it replaces Orbax's own paths of buckets

    return paths.BucketPath(address)

  def write(self, path: str | os.PathLike, content: bytes) -> None:
    from experiments.commands.buckets import paths

    paths.write(path, content)

  def names(self, folder: str) -> list[str]:
    from experiments.commands.buckets import paths

    return paths.names(folder)

  @contextlib.contextmanager
  def held(self, workdir: str | os.PathLike) -> Iterator[None]:
    from experiments.commands.buckets import lease

    path = self.path(workdir)
    try:
      claim = lease.Lease(path / lock.NAME)
    except lease.HeldError as error:
      raise ConfigError(lock.refusal(workdir, str(error))) from None
    _leases[str(path)] = claim
    try:
      yield
    finally:
      _leases.pop(str(path)).release()

  def check(self, workdir: str | os.PathLike) -> None:
    from experiments.commands.buckets import lease

    try:
      if claim := _leases.get(str(self.path(workdir))):
        claim.check()
    except lease.HeldError as error:
      raise lock.MovedError(f"--workdir={workdir}: {error} has taken the folder over, because this "
                            "process did not renew its claim for a minute. Nothing more is "
                            "written. Fix: one trainer for a folder; the same command resumes "
                            "when the other has ended.") from error

  def manager(self, directory: Any, keep: int) -> Any:
    from experiments.commands.buckets import checkpoints

    return checkpoints.BucketManager(directory, keep)

  def complete(self, path: Any) -> bool:
    from experiments.commands.buckets import checkpoints

    return checkpoints.complete(path)

  def iterations(self, directory: Any) -> list[int]:
    from experiments.commands.buckets import checkpoints

    return checkpoints.iterations(directory)

  def discard(self, path: Any) -> None:
    from experiments.commands.buckets import checkpoints

    checkpoints.remove(path)


folders.STORAGES[PREFIX] = Buckets()
