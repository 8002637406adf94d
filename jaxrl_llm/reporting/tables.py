"""Tables in Markdown."""

from collections.abc import Sequence
from typing import Any

MISSING = "-"


def markdown_table(header: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> str:
  """Returns a Markdown table with padded columns; `|` inside a cell is escaped.

  Raises:
    ValueError: a row and the header have different numbers of cells.
  """
  for row in rows:
    if len(row) != len(header):
      raise ValueError(f"row {row!r} has {len(row)} cells; the header has {len(header)}.")
  cells = [[_cell(value) for value in row] for row in (header, *rows)]
  widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]
  padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
  lines = ["| " + " | ".join(row) + " |" for row in padded]
  lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
  return "\n".join(lines) + "\n"


def _cell(cell_value) -> str:
  return str(cell_value).replace("|", "\\|").replace("\n", " ")
