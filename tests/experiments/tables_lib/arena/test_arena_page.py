"""experiments/arena: the pages are rendered from the results, and both test beds are asked."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.tables_lib import page_parts, statistics
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


def test_the_transformer_s_table_is_asked_method_by_method(page):
  seeds = range(5)
  means = {"MinPRO": {seed: 0.8 + 0.01 * seed for seed in seeds},
           "GRPO": {seed: 0.5 + 0.02 * seed for seed in seeds},
           "CISPO": {0: 0.9}}  # one seed decides nothing
  (text, measures), = sys.modules["transformer"].compared({"end": means, "mean": means}).items()
  assert text == "MinPRO ahead of GRPO" and measures["end"].sign == measures["mean"].sign == 1
  assert statistics.verdict(measures, measures).verdict == "decided"
  swapped = {"MinPRO": means["GRPO"], "GRPO": means["MinPRO"]}
  (_, other), = sys.modules["transformer"].compared({"mean": swapped}).items()
  assert statistics.contradictions(measures, other) == ("mean",)


def test_the_transformer_is_asked_by_both_measures_over_both_values_of_staleness(page):
  """A run that rises late has a lower mean than end; one value of staleness alone is no answer."""
  transformer = sys.modules["transformer"]
  run = {"measured": {"sampled": [0.2, 0.4, 0.9]}, "seed": 0}
  late = {"measured": {"sampled": [0.2, 0.2, 0.5]}, "seed": 0}
  results = {"age8_GRPO_1e-4_seed0": run, "age32_GRPO_1e-4_seed0": late,
             "age8_GSPO_3e-4_seed0": run}
  values = transformer.by_method(results)
  assert values["end"] == {"GRPO": {0: pytest.approx(0.7)}}
  assert values["mean"] == {"GRPO": {0: pytest.approx(0.4)}}


def cell(method: str, returns: float, age: int = 4, noise: float = 0.0, **setting):
  """A cell of two seeds whose end is `returns` and whose mean is half of it."""
  setting = {"task": "warm", "length": 64, "groups": 8, "group_size": 8, **setting}
  values = [[returns, returns + 0.1]]
  return records.Cell(method, method, setting, age, noise, (0.1,), (0, 1), values,
                      (np.asarray(values) / 2).tolist(), values, [0.0], [1.0], [[0.0] * 8],
                      [[0.0] * 8], (1.0, 1.0), 1.0, "")


def test_only_cells_of_the_condition_count(page, monkeypatch):
  """Noise and short completions are left out, and a claim's number is the mean over the others."""
  verdicts, claims = sys.modules["verdicts"], sys.modules["claims"]
  there = [cell(name, value, noise=noise, length=length)
           for name, values in (("cispo", (0.9, 0.1, 0.7)), ("seq_is", (0.5, 0.6, 0.6)))
           for value, (noise, length) in zip(values, ((0.0, 256), (1.0, 256), (0.0, 1024)),
                                             strict=True)]
  there.append(cell("cispo", 0.0))
  there.append(cell("seq_is", 1.0))
  monkeypatch.setattr(verdicts, "cells", lambda table: there if table == "noise" else ())
  claim = claims.Claim("", "", "cispo", "seq_is", tables=("noise",), shortest=256)
  np.testing.assert_allclose(verdicts.pooled(claim, "end"), [0.25, 0.25])
  np.testing.assert_allclose(verdicts.pooled(claim, "mean"), [0.125, 0.125])
  every = [one - other for one, other in ((0.9, 0.5), (0.1, 0.6), (0.7, 0.6), (0.0, 1.0))]
  assert not np.isclose(np.mean(every), 0.25)  # all conditions are another number


def test_fresh_seeds_are_the_primary_once_all_of_them_have_run(page, monkeypatch):
  verdicts, claims = sys.modules["verdicts"], sys.modules["claims"]
  at_map = [cell(name, value, age=age) for name, value in (("cispo", 0.9), ("grpo", 0.5))
            for age in (4, 16)]
  fresh = [dataclasses.replace(entry, seeds=claims.FRESH_SEEDS,
                               final=[[0.6] * len(claims.FRESH_SEEDS)]) for entry in at_map]
  claim = claims.Claim("", "", "cispo", "grpo", tables=("map",))
  monkeypatch.setattr(verdicts, "cells", lambda table: at_map if table == "map" else fresh[:3])
  np.testing.assert_allclose(verdicts.pooled(claim, "end"), [0.4, 0.4])
  monkeypatch.setattr(verdicts, "cells", lambda table: at_map if table == "map" else fresh)
  np.testing.assert_allclose(verdicts.pooled(claim, "end"), np.zeros(len(claims.FRESH_SEEDS)))
