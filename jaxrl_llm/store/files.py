"""Files that are complete or absent, and the names of the files of rollouts."""

import os
import re

from jaxrl_llm.store.folders import storage_of

FACTS = ".jsonl"  # of the files that count; arrays are next to them
ROLLOUTS = re.compile(r"iteration_(\d+)(?:-(\d+)-of-(\d+))?(\.jsonl|\.parquet|\.npz)")


def write_atomically(path: str | os.PathLike, content: str | bytes) -> None:
  """Replaces the file at `path`; a reader sees the old or the new content, even after a crash."""
  content = content if isinstance(content, bytes) else content.encode(errors="replace")
  if storage := storage_of(path):
    storage.write(path, content)
    return
  temporary = f"{os.fspath(path)}.tmp"
  with open(temporary, "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def rollout_path(workdir: str | os.PathLike, iteration: int, part: tuple[int, int] = (0, 1)) -> str:
  """Returns the path of the rollouts of one iteration.

  Args:
    part: (which process, of how many) wrote them.
  """
  process, count = part
  of = f"-{process:05d}-of-{count:05d}" if count > 1 else ""
  return os.path.join(workdir, "rollouts", f"iteration_{iteration:05d}{of}{FACTS}")


def rollout_part(path: str) -> tuple[int, int]:
  """Returns (which process, of how many) wrote a file of rollouts."""
  match = ROLLOUTS.fullmatch(os.path.basename(path))
  return (int(match[2]), int(match[3])) if match and match[2] else (0, 1)


def rollout_files(workdir: str | os.PathLike, arrays: bool = False) -> dict[int, list[str]]:
  """Returns the files of rollouts in a run's folder by iteration.

  Args:
    arrays: whether files of arrays count, too, with facts or without; the facts come first.
  """
  folder = os.path.join(workdir, "rollouts")
  paths: dict[int, list[str]] = {}
  for name in sorted(_names(folder), key=lambda name: (not name.endswith(FACTS), name)):
    match = ROLLOUTS.fullmatch(name)
    if match and (arrays or match[4] == FACTS):
      paths.setdefault(int(match[1]), []).append(os.path.join(folder, name))
  return paths


def _names(folder: str) -> list[str]:
  """Returns the names of a folder's files; none without a folder."""
  if storage := storage_of(folder):
    return storage.names(folder)
  return os.listdir(folder) if os.path.isdir(folder) else []
