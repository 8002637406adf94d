"""Cases are marked by their ids."""

from pathlib import Path

import pytest
from suites import LONG, quick_for, quick_of


def marks(cases):
  return {case.id: [mark.name for mark in case.marks] for case in cases}


def test_all_but_the_quick_ones_are_marked():
  assert marks(quick_for({"2"}, [1, 2])) == {"1": ["slow"], "2": []}
  grid = quick_of({"a"}, {"a": (1, 2), "b": (3, 4), "c": (5, 6)}, slow={"b"})
  assert marks(grid) == {"a": [], "b": ["slow"], "c": ["nightly"]} and grid[1].values == (3, 4)


def test_an_id_without_a_case_is_refused():
  with pytest.raises(AssertionError, match="no case is called"):
    quick_for({"two"}, [1, 2])


def test_the_long_files_are_there():
  assert all((Path(__file__).parent / name).is_file() for name in LONG)
