"""Parts of a page that commands write, and the tables in them.

A part is the text between two markers. Its tables are read back cell by cell, as
`tables.markdown_table` wrote them, so that one page can quote a number of another by part, row and
column.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.store.files import write_atomically

BEGIN, END = "<!-- written by ", ": begin -->"  # of the first line of a part
WIDEST = 160  # characters of a table's line


def replace_part(path: str | os.PathLike, name: str, text: str) -> None:
  """Writes a text between the markers of a page: `<!-- written by NAME: begin -->` and `: end -->`.

  Raises:
    ConfigError: the page does not have the two markers once each, in this order.
  """
  before, _, after = split(Path(path).read_text(), name, path)
  write_atomically(path, f"{before}\n\n{text}\n{after}")


def split(text: str, name: str, path: str | os.PathLike) -> tuple[str, str, str]:
  """Returns the text before a part, its marker included, the part, and the text after it.

  Args:
    text: of a page.
    path: of the page, for the error.

  Raises:
    ConfigError: the page does not have the two markers once each, in this order.
  """
  begin, end = markers(name)
  if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
    raise ConfigError(f"{path}: no place for the part written by {name}. Fix: the lines {begin} "
                      f"and {end}, each once.")
  before, remainder = text.split(begin)
  part, after = remainder.split(end)
  return before + begin, part, end + after


def markers(name: str) -> tuple[str, str]:
  """Returns the two lines between which a page has the part that `name` writes."""
  return f"{BEGIN}{name}{END}", f"{BEGIN}{name}: end -->"


@dataclasses.dataclass(frozen=True)
class RenderedTable:
  """A table of a page.

  Attributes:
    title: the line before it, without the marks of a heading; empty without one.
    rows: of as many cells as the header.
  """

  title: str
  header: tuple[str, ...]
  rows: tuple[tuple[str, ...], ...]


def narrow_tables(header: tuple[str, ...], rows: Sequence[tuple], keys: int = 1) -> str:
  """Returns a table in Markdown; one wider than WIDEST as several, with the same rows.

  Args:
    keys: columns at the left that each of them begins with: they say what a row is of.
  """
  chosen, out = list(range(keys)), []
  for column in range(keys, len(header)):
    if len(chosen) > keys and _width(header, rows, [*chosen, column]) > WIDEST:
      out.append(_columns(header, rows, chosen))
      chosen = list(range(keys))
    chosen.append(column)
  return "\n".join([*out, _columns(header, rows, chosen)])


def _columns(header: tuple[str, ...], rows: Sequence[tuple], columns: list[int]) -> str:
  """Returns the table of some columns."""
  return markdown_table(*(tuple(header[i] for i in columns),
                          [tuple(row[i] for i in columns) for row in rows]))


def _width(header: tuple[str, ...], rows: Sequence[tuple], columns: list[int]) -> int:
  return len(_columns(header, rows, columns).partition("\n")[0])


def names(text: str) -> list[str]:
  """Returns the names of a page's parts, in their order."""
  return [line[len(BEGIN):-len(END)] for line in text.splitlines()
          if line.startswith(BEGIN) and line.endswith(END)]


def tables(part: str) -> list[RenderedTable]:
  """Returns the tables of a text. A table is lines that begin with `|`, the second its rule."""
  out: list[RenderedTable] = []
  title, block = "", []
  for line in [*part.splitlines(), ""]:
    if line.startswith("|"):
      block.append(cells(line))
      continue
    if len(block) > 1:
      out.append(RenderedTable(title, block[0], tuple(block[2:])))
      title = ""
    block = []
    title = line.lstrip("# ") or title
  return out


def cells(line: str) -> tuple[str, ...]:
  """Returns the cells of a line of a table, as they were before `|` in them was escaped."""
  parts = line.strip().strip("|").replace("\\|", "\0").split("|")
  return tuple(cell.strip().replace("\0", "|") for cell in parts)


@dataclasses.dataclass(frozen=True)
class Place:
  """The place of a number on a page.

  Attributes:
    part: its name; empty: the full page.
    row: cells of the row; no other row of a table with the column has all of them.
    column: its header.
    number: which of the cell's numbers: 0, 1 is after the `±`, -1 the last.
    title: begins the title, or is the first header, of the one table that is meant; empty: any.
  """

  part: str
  row: tuple[str, ...]
  column: str
  number: int = 0
  title: str = ""

  def read(self, page: Path) -> float:
    """Returns the number that a page has there.

    Raises:
      ConfigError: the page has no such part.
      LookupError: no or several rows have these cells, or the cell has no such number.
    """
    places = []
    text = page.read_text()
    for table in tables(split(text, self.part, page)[1] if self.part else text):
      meant = table.title.startswith(self.title) or table.header[0] == self.title
      if meant and self.column in table.header:
        places += [row[table.header.index(self.column)] for row in table.rows
                   if set(self.row) <= set(row)]
    if len(places) != 1:
      raise LookupError(f"{len(places)} rows")
    return numbers(places[0])[self.number]


def numbers(cell: str) -> list[float]:
  """Returns the numbers of a cell: of "0.5 ± 0.1", "3 of 5" or "0.1 / 0.2" two, of "0.5 (0.1 to
  0.7), above" three.
  """
  out = []
  for word in cell.translate(str.maketrans("±/%(),", "      ")).split():
    try:
      out.append(float(word))
    except ValueError:
      continue
  return out
