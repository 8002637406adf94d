"""The module that writes the arena's pages."""

import sys
from pathlib import Path

import pytest

from experiments.tables_lib.arena import records

ARENA = Path(__file__).parents[4] / "experiments" / "arena"
NAMES = ("page", "returns", "forest", "verdicts", "transformer", "claims", "cells")


@pytest.fixture(scope="module")
def page():
  """The module that writes the page; its folder's names are gone with it."""
  before = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
  sys.path.insert(0, str(ARENA))
  import page as module
  yield module
  sys.path.remove(str(ARENA))
  for name in NAMES:
    sys.modules.pop(name, None)
  sys.modules.update(before)


@pytest.fixture
def with_cells(page, monkeypatch):
  """Lets pages be made of what a function makes of each cell of the results."""
  verdicts, read = sys.modules["verdicts"], records.read

  def forget():
    verdicts.cells.cache_clear()
    verdicts.differences.cache_clear()

  def change(other):
    monkeypatch.setattr(records, "read", lambda path: list(map(other, read(path))))
    forget()

  yield change
  forget()
