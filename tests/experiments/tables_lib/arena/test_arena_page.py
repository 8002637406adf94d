"""experiments/arena: the page is rendered from the results, and both instruments are asked."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.tables_lib import page_parts, statistics
from experiments.tables_lib.arena import records

ARENA = Path(__file__).parents[4] / "experiments" / "arena"
PAGE = (ARENA / "README.md").read_text()


@pytest.fixture(scope="module")
def page():
  """The module that writes the page; its folder's names are gone with it."""
  names = ("page", "verdicts", "transformer", "claims", "cells")
  before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
  sys.path.insert(0, str(ARENA))
  import page as module
  yield module
  sys.path.remove(str(ARENA))
  for name in names:
    sys.modules.pop(name, None)
  sys.modules.update(before)


def differing(page) -> set[str]:
  """The parts whose text is not the committed one."""
  return {part.name for part in page.parts()
          if page_parts.split(PAGE, f"page.py {part.name}", ARENA)[1].strip("\n")
          != part.text.strip("\n")}


def test_the_page_is_rendered_from_the_committed_results(page):
  assert differing(page) == set()


def test_other_results_are_another_page(page, monkeypatch):
  real = records.read

  def worse(path):
    return [dataclasses.replace(cell, final=(np.asarray(cell.final) / 2).tolist())
            if cell.method == "cispo" else cell for cell in real(path)]

  monkeypatch.setattr(records, "read", worse)
  sys.modules["verdicts"].cells.cache_clear()
  sys.modules["verdicts"].primaries.cache_clear()
  assert differing(page) >= {"answer", "claims", "tuned", "shares"}
  sys.modules["verdicts"].cells.cache_clear()
  sys.modules["verdicts"].primaries.cache_clear()


def test_the_transformer_s_table_is_asked_method_by_method(page):
  seeds = range(5)
  means = {"MinPRO": {seed: 0.8 + 0.01 * seed for seed in seeds},
           "GRPO": {seed: 0.5 + 0.02 * seed for seed in seeds},
           "CISPO": {0: 0.9}}  # one seed decides nothing
  (text, difference), = sys.modules["transformer"].compared(means).items()
  assert text.startswith("MinPRO is ahead of GRPO") and difference.sign == 1
  assert statistics.verdict(difference, difference) == "decided"
  swapped = {"MinPRO": means["GRPO"], "GRPO": means["MinPRO"]}
  (_, other), = sys.modules["transformer"].compared(swapped).items()
  assert statistics.contradicts(difference, other)
