"""The SHA-256 of each file of a saved tree, in a list next to them that `sha256sum -c` reads, too.

Orbax stores compressed arrays without a checksum: one flipped bit changes a parameter, and nothing
raises. A list is written when the tree is complete, and compared before it is read. A gigabyte
takes 0.7 s of a processor with SHA instructions (2.0 s without), one way as the other; during a run
it is a thread that writes the list.
"""

import concurrent.futures
import hashlib
import re
from pathlib import Path

from jaxrl_llm.store.files import write_atomically

NAME = "checksums.sha256"
LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def write(folder: Path, earlier: str = "", pattern: str = "**/*") -> None:
  """Writes the list of a folder, in it.

  Args:
    earlier: a list whose lines are kept; only other files are digested.
    pattern: pattern of the paths that are listed.

  Raises:
    OSError: a file cannot be read, or the list not be written.
  """
  names = {line.partition("  ")[2] for line in earlier.split("\n")}
  files = [path for path in sorted(folder.glob(pattern)) if path.is_file() and path.name != NAME
           and path.relative_to(folder).as_posix() not in names]
  lines = [f"{digest}  {path.relative_to(folder).as_posix()}\n"
           for path, digest in zip(files, digests(files), strict=True)]
  write_atomically(folder / NAME, earlier + "".join(lines))


def complete(folder: Path) -> None:
  """Adds to a list the files that were written after it; raises as `write`."""
  if (folder / NAME).is_file():
    write(folder, (folder / NAME).read_text())


def damage(folder: Path, share: slice = slice(None)) -> str | None:
  """Returns what is wrong with a folder's files in a few words; None: nothing, or no list exists.

  Args:
    share: of the lines of the list, which one of several processes compares.

  Raises:
    OSError: a file cannot be read.
  """
  path = folder / NAME
  if not path.is_file():
    return None  # written before there were lists, or the run was killed before the list was
  lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
  matches = [LINE.fullmatch(line) for line in lines[:-1]]
  if not lines[:-1] or lines[-1] or not all(matches):
    return f"{NAME} is not a list of checksums"
  listed = [(match[2], match[1]) for match in matches if match][share]
  missing = next((name for name, _ in listed if not (folder / name).is_file()), None)
  if missing is not None:
    return f"{missing} is missing"
  now_digests = digests([folder / name for name, _ in listed])
  changed = [name for (name, digest), now in zip(listed, now_digests, strict=True) if digest != now]
  suffix = f" and {len(changed) - 1} more" if changed[1:] else ""
  return f"{changed[0]}{suffix} changed since it was written" if changed else None


def digests(files: list[Path]) -> list[str]:
  """Returns the SHA-256 of each file, computed in threads, as hashing releases Python's lock.
  Nothing is kept between calls, because a medium that loses a bit changes no time of a file.
  """
  with concurrent.futures.ThreadPoolExecutor() as threads:
    return list(threads.map(_digest, files))


def _digest(path: Path) -> str:
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
