"""Tables of pages: no wider than a screen, and readable cell by cell."""

from pathlib import Path

import pytest

from experiments.tables_lib import page_parts
from jaxrl_llm.reporting.tables import markdown_table

ROOT = Path(__file__).parents[3]
HEADER = ("size", "method", *(f"a long heading of column {i}" for i in range(9)))
ROWS = [(size, method, *(f"{size}.{i} ± 0.1" for i in range(9)))
        for size, method in ((4, "one"), (4, "two"), (8, "one"))]


def cut(header, rows, keys):
  """Tables that are narrow, too, but whose second one does not say what its rows are of."""
  del keys
  return "\n".join(markdown_table(header[a:b], [row[a:b] for row in rows])
                   for a, b in ((0, 6), (6, len(header))))


def readable(narrow, tmp_path) -> bool:
  """Whether the tables are narrow and each number is found by its row and column."""
  text = narrow(HEADER, ROWS, 2)
  (tmp_path / "page.md").write_text(text)
  tables = page_parts.tables(text)
  widths = [len(line) for line in text.splitlines()]
  try:
    values = [page_parts.Place("", ("4", "two"), name).read(tmp_path / "page.md")
              for name in HEADER[2:]]
  except LookupError:
    return False
  return len(tables) > 1 and max(widths) <= page_parts.WIDEST and values == [
      float(f"4.{i}") for i in range(9)]


def test_a_wide_table_becomes_several_with_the_same_keys(tmp_path):
  assert readable(page_parts.narrow_tables, tmp_path)
  assert not readable(cut, tmp_path)
  assert not readable(lambda header, rows, keys: markdown_table(header, rows), tmp_path)
  small = HEADER[:3], [row[:3] for row in ROWS]
  assert page_parts.narrow_tables(*small) == markdown_table(*small)


PAGES = sorted(ROOT.glob("experiments/**/*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_no_written_table_is_wider_than_a_screen(page):
  text = page.read_text()
  wide = [line[:60] for name in page_parts.names(text)
          for line in page_parts.split(text, name, page)[1].splitlines()
          if line.startswith("|") and len(line) > page_parts.WIDEST]
  assert not wide
