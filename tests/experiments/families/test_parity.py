"""The table of families against transformers: the page has all, and what is beyond is named."""

import math

import pytest

from experiments.families import parity
from experiments.tables_lib import page_parts
from jaxrl_llm.models import families

ROW = ("llama", "llama", 1e-6, 1e-5, 2e-6, 0, 1e-6, 0.0, 1e-6, 1e-6)


@pytest.mark.parametrize("column", ["logits", "gradient", "greedy", "ragged rows", "export", "LoRA",
                                    "packing"])
@pytest.mark.parametrize("value", [2e-4, math.nan])
def test_what_is_beyond_is_named(column, value):
  row = [value if name == column else x for name, x in zip(parity.HEADER, ROW, strict=True)]
  assert parity.beyond(tuple(row)) == [column]


def test_the_page_has_every_family_within_the_bound():
  page = parity.HERE / "README.md"
  (table,) = page_parts.tables(page_parts.split(page.read_text(), parity.PART, page)[1])
  rows = {row[1]: row for row in table.rows}
  assert list(rows) == list(parity.NAMES)
  assert {row[0] for row in table.rows} == {*families.names(), "olmo3"}
  for row in table.rows:
    equal, total = map(int, row[5].split(" of "))
    values = (*map(float, row[2:5]), total - equal, *map(float, row[6:]))
    assert parity.beyond((*row[:2], *values)) == []


@pytest.mark.nightly
def test_a_row_as_the_command_makes_it(tmp_path):
  row = parity.errors("gemma3", tmp_path)
  assert row[:2] == ("gemma3_text", "gemma3") and parity.beyond(row) == []
