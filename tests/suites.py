"""Which cases of a parametrised test the quick suite runs."""

from collections.abc import Callable, Collection, Iterable, Mapping

import pytest


def quick_of(quick: Collection[str], cases: Mapping[str, tuple],
             mark: pytest.MarkDecorator = pytest.mark.slow) -> list:
  """Returns the parameters of a test; all but the quick ones are marked.

  Args:
    quick: ids of cases.
    cases: the arguments of each case, by its id.
    mark: of the others.
  """
  quick = set(quick)
  absent = quick - cases.keys()
  assert not absent, f"no case is called {sorted(absent)}; there are {list(cases)}"
  return [pytest.param(*arguments, id=name, marks=() if name in quick else mark)
          for name, arguments in cases.items()]


def quick_for(quick: Collection[str], values: Iterable, ids: Callable = str) -> list:
  """As quick_of, of a test with one argument.

  Args:
    ids: of a value.
  """
  return quick_of(quick, {ids(value): (value,) for value in values})
