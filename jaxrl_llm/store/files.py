"""Files that are complete or absent."""

import os


def write_atomically(path: str | os.PathLike, content: str | bytes) -> None:
  """Replaces the file at `path`; a reader sees the old or the new content, even after a crash."""
  temporary = f"{os.fspath(path)}.tmp"
  with open(temporary, "wb") as file:
    file.write(content if isinstance(content, bytes) else content.encode(errors="replace"))
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)
