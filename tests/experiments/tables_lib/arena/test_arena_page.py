"""experiments/arena: the pages are rendered from the results."""

import dataclasses
import sys
from pathlib import Path

import numpy as np

from experiments.tables_lib import page_parts
from experiments.tables_lib.arena import records

ARENA = Path(__file__).parents[4] / "experiments" / "arena"


def differing(page) -> set[str]:
  """The parts whose text is not the committed one."""
  return {part.name for part in page.parts()
          if page_parts.split(part.page.read_text(), f"page.py {part.name}", ARENA)[1].strip("\n")
          != part.text.strip("\n")}


def forget() -> None:
  """Lets the next call read the results again."""
  sys.modules["verdicts"].cells.cache_clear()
  sys.modules["verdicts"].differences.cache_clear()


def test_the_page_is_rendered_from_the_committed_results(page):
  assert differing(page) == set()


def test_other_results_are_another_page(page, monkeypatch):
  real = records.read

  def worse(path):
    return [dataclasses.replace(cell, final=(np.asarray(cell.final) / 2).tolist())
            if cell.method == "cispo" else cell for cell in real(path)]

  monkeypatch.setattr(records, "read", worse)
  forget()
  assert differing(page) >= {"answer", "forest", "claims", "differences", "warm", "fresh warm",
                              "shares"}
  forget()


def cell(method: str, returns: float, age: int = 4, noise: float = 0.0, **setting):
  """A cell of two seeds whose end is `returns` and whose mean is half of it."""
  setting = {"task": "warm", "length": 64, "groups": 8, "group_size": 8, **setting}
  values = [[returns, returns + 0.1]]
  return records.Cell(method, method, setting, age, noise, (0.1,), (0, 1), values,
                      (np.asarray(values) / 2).tolist(), values, [0.0], [1.0], [[0.0] * 8],
                      [[0.0] * 8], (1.0, 1.0), 1.0, "")
