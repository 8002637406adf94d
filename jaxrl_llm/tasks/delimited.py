"""Records of comma- or tab-separated files, each with the line at which it begins."""

import collections
import csv
import sys
from collections.abc import Iterable, Iterator


def records(lines: Iterable[bytes], delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
  """Yields (number of the first line, fields), or in place of fields what is wrong with them.

  After a record that cannot be read, reading continues at the line after its first: a quote that
  never closes costs one record and not all later ones. Fields have any length. Empty lines are left
  out.

  Args:
    lines: with their ends; the first may begin with a byte order mark.
  """
  # A limit of the process, 131,072 characters before; worked solutions are longer.
  csv.field_size_limit(sys.maxsize)
  source = enumerate(lines, 1)
  again: collections.deque[tuple[int, bytes]] = collections.deque()
  while True:
    used: list[tuple[int, bytes]] = []
    try:
      record = next(csv.reader(_decoded(again, source, used), delimiter=delimiter, strict=True),
                    None)
    except (csv.Error, UnicodeDecodeError) as error:
      if isinstance(error, UnicodeDecodeError):
        yield used[-1][0], _reason(error)  # that line is at fault, and its record with it
      else:
        again.extendleft(reversed(used[1:]))
        yield used[0][0], _reason(error)
      continue
    if record is None:
      return
    if record:
      yield used[0][0], record


def _decoded(again: collections.deque, source: Iterator[tuple[int, bytes]],
             used: list[tuple[int, bytes]]) -> Iterator[str]:
  """Yields lines as text, first the lines to read again, and records them in `used`."""
  while True:
    entry = again.popleft() if again else next(source, None)
    if entry is None:
      return
    used.append(entry)
    yield entry[1].decode("utf-8-sig" if entry[0] == 1 else "utf-8")


def _reason(error: csv.Error | UnicodeDecodeError) -> str:
  if isinstance(error, UnicodeDecodeError):
    return f"not UTF-8 (byte {error.start + 1} of the line). Fix: save the file in UTF-8."
  if "unexpected end" in str(error):
    return "a quote that never closes. Fix: the row; a quote inside a text is written twice."
  return f"malformed: {error}. Fix: the row; a quote inside a text is written twice."
