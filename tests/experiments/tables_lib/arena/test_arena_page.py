"""experiments/arena: the pages are rendered from the results."""

import dataclasses
from pathlib import Path

import numpy as np

from experiments.tables_lib import page_parts

ARENA = Path(__file__).parents[4] / "experiments" / "arena"


def differing(page) -> set[str]:
  """The parts whose text is not the committed one."""
  return {part.name for part in page.parts()
          if page_parts.split(part.page.read_text(), f"page.py {part.name}", ARENA)[1].strip("\n")
          != part.text.strip("\n")}


def test_the_page_is_rendered_from_the_committed_results(page):
  assert differing(page) == set()


def test_other_results_are_another_page(page, with_cells):
  with_cells(lambda cell: dataclasses.replace(cell, final=(np.asarray(cell.final) / 2).tolist())
             if cell.method == "cispo" else cell)
  assert differing(page) >= {"answer", "forest", "claims", "differences", "warm", "fresh warm",
                             "shares"}
