"""Checkpoints in a bucket, by Orbax: arrays go there directly, from every process.

Orbax's own manager asks Google's client library for the kind of the bucket. This one needs only
tensorstore. A folder cannot be renamed there, so Orbax writes `commit_success.txt` last, and a
folder without it is no checkpoint.
"""

from typing import Any

import orbax.checkpoint as ocp

from experiments.commands.buckets.paths import BucketPath
from jaxrl_llm.parallel import processes
from jaxrl_llm.store import folders

COMPLETE = "commit_success.txt"
ENTRY = "default"  # the folder that Orbax's manager gives a tree


def complete(path: BucketPath) -> bool:
  """Returns whether a saved tree is complete."""
  return (path / COMPLETE).is_file()


def iterations(directory: BucketPath) -> list[int]:
  """Returns the iterations that were saved in a folder completely, in order."""
  paths = [path.parent for path in directory.glob(f"*/{COMPLETE}")]
  paths += [path.parent.parent for path in directory.glob(f"*/{ENTRY}/{COMPLETE}")]
  return sorted(int(path.name) for path in paths if path.name.isdigit())


def remove(path: BucketPath) -> None:
  """Removes a saved tree, if it exists: first the file that marks it complete."""
  for mark in (path / COMPLETE, path / ENTRY / COMPLETE):
    mark.unlink(missing_ok=True)
  if path.exists():
    folders.remove(path)


class BucketManager:
  """The part of ocp.CheckpointManager that `Checkpoints` uses, for a bucket.

  Args:
    directory: its subfolders are named by their iteration.
    keep: how many of the newest stay.
  """

  def __init__(self, directory: BucketPath, keep: int):
    self._directory, self._keep = directory, keep
    self._checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

  def save(self, iteration: int, args: Any, force: bool = True) -> None:
    """Begins to write; on return the tree has been copied from the devices."""
    del force
    path = self._directory / str(iteration)
    processes.from_main("unfinished checkpoint", lambda: remove(path))
    self._checkpointer.save(path / ENTRY, args=args)

  def wait_until_finished(self) -> None:
    """Waits for what `save` began, and removes what is older than the newest `keep`."""
    self._checkpointer.wait_until_finished()
    if processes.is_main():
      for iteration in self.all_steps()[:-self._keep]:
        remove(self._directory / str(iteration))

  def all_steps(self) -> list[int]:
    """Returns the iterations of complete checkpoints, in order."""
    return iterations(self._directory)

  def latest_step(self) -> int | None:
    """Returns the last of them, or None."""
    return max(self.all_steps(), default=None)

  def restore(self, iteration: int, args: Any) -> Any:
    """Reads a checkpoint."""
    return self._checkpointer.restore(self._directory / str(iteration) / ENTRY, args=args)

  def reload(self) -> None:
    """Does nothing: the bucket is asked each time."""

  def close(self) -> None:
    """Ends the thread."""
    self._checkpointer.close()
