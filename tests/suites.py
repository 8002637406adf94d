"""Which cases of a parametrised test the quick suite runs."""

from collections.abc import Callable, Collection, Iterable, Mapping

import pytest

# Files that take a minute or more, most of them in few tests. They begin first, so that no worker
# is left with one of them at the end (README.md).
LONG = ("runs/test_smollm2.py", "parallel/test_faults.py", "test_notebooks.py",
        "test_extend_pages.py", "runs/test_end_to_end.py", "test_types.py", "parallel/test_runs.py",
        "runs/test_every_preset.py", "runs/test_evaluation_sets.py", "runs/test_watched_run.py",
        "runs/test_resume.py", "models/hf/test_families.py")


def quick_of(quick: Collection[str], cases: Mapping[str, tuple],
             slow: Collection[str] | None = None) -> list:
  """Returns the parameters of a test; all but the quick ones are marked.

  Args:
    quick: ids of cases.
    cases: the arguments of each case, by its id.
    slow: ids of the cases that are slow; the others are nightly. By default all others are slow.
  """
  quick = set(quick)
  slow = cases.keys() - quick if slow is None else set(slow)
  absent = (quick | slow) - cases.keys()
  assert not absent, f"no case is called {sorted(absent)}; there are {list(cases)}"
  mark = lambda name: (() if name in quick else
                       pytest.mark.slow if name in slow else pytest.mark.nightly)
  return [pytest.param(*arguments, id=name, marks=mark(name)) for name, arguments in cases.items()]


def quick_for(quick: Collection[str], values: Iterable, ids: Callable = str) -> list:
  """As quick_of, of a test with one argument.

  Args:
    ids: of a value.
  """
  return quick_of(quick, {ids(value): (value,) for value in values})
