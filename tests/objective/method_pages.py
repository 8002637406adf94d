"""What the tables and headings of a methods page say, as Python values."""

import ast
import re


def table(page: str, heading: str, number: int = 0) -> dict[str, list[str]]:
  """Returns name in the first column -> other cells, of a section's `number`-th table."""
  sections = re.split(r"^## ", page, flags=re.M)
  section = next(s for s in sections if s.startswith(heading + "\n"))
  tables = re.findall(r"(?:^\|.*\|\n?)+", section, re.M)
  rows = [line.strip("|").split(" | ") for line in tables[number].strip().split("\n")]
  rows = [[cell.strip() for cell in row] for row in rows if not row[0].startswith("---")]
  assert len({len(row) for row in rows}) == 1, f"{heading}: rows of unequal length"
  cells = {links(row[0])[0]: row[1:] for row in rows[1:]}
  assert len(cells) == len(rows) - 1, f"{heading}: a name stands there twice"
  return cells


def links(cell: str) -> tuple[str, str]:
  """Returns (a cell's text without backticks, the file that it links to or "")."""
  text, target = re.fullmatch(r"\[(.*)\]\((.*)\)|.*", cell).groups()
  return (text or cell).strip("`"), target or ""


def sections(page: str) -> set[str]:
  """Returns the words of all third-level headings."""
  return set(" ".join(re.findall(r"^### (.*)", page, re.M)).split())


def numbers(cell: str) -> dict:
  if cell == "-":
    return {}
  pairs = (item.split("=") for item in cell.split(", "))
  return {name: None if value == "none" else ast.literal_eval(value) for name, value in pairs}
