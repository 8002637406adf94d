"""Methods by their texts, sweeps, their tables and files, and what a run must not depend on."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from experiments.tables_lib import arena
from experiments.tables_lib.arena import methods, records, rows, tables
from experiments.tables_lib.arena.setting import Setting
from jaxrl_llm.config import ConfigError

ROOT = Path(__file__).parents[4]
TINY = arena.Lab("ending", length=16, groups=4, group_size=4, iterations=8, evaluations=4, ring=5)


@pytest.fixture(scope="module")
def swept():
  return TINY.sweep(["cispo", "none@reinforce?advantage=grpo"], steps=(0.05, 0.4), ages=(0, 4),
                    seeds=3, progress=False)


def test_a_text_sets_every_part_of_a_method():
  method = methods.parse("mine@ppo?clip_high=none&advantage=otb&aggregation=fixed&anchor=recomputed"
                         "&correction.level=token&correction.cap=3.0", 24)
  assert (method.label, method.anchor, method.advantage.name) == ("mine", "recomputed", "otb")
  assert method.estimator.clip_high is None and method.aggregation.fixed_length == 24
  assert (method.correction.level, method.correction.cap) == ("token", 3.0)
  assert methods.parse("topr", 8).signed and methods.parse("decoupled_ppo", 8).correction.low == 0
  assert methods.parse("ctpo", 8).correction.level == "none", "the ratio is to the sampler already"


@pytest.mark.parametrize("text, message", [
    ("cispoo", "did you mean 'cispo'"), ("cispo?clip_hihg=2", "clip_hihg"),
    ("dapo", "dynamic_sampling.enabled=True: the arena has estimators"),
    ("cispo?anchor=reference", "anchor = 'reference': allowed are behavior, recomputed"),
    ("cispo?correction.level=token", "Fix: add anchor=recomputed"),
    ("cispo?clip_high", "key=value"),
])
def test_a_wrong_text_says_what_is_wrong(text, message):
  with pytest.raises(ConfigError) as error:
    methods.parse(text, 16)
  assert message.lower() in str(error.value).lower()


@pytest.mark.slow
def test_runs_learn_and_are_paired_by_their_seeds(swept):
  cells = {(cell.method, cell.age): cell for cell in swept.cells}
  assert len(cells) == 4 and all(np.shape(cell.final) == (2, 3) for cell in swept.cells)
  # With one optimizer batch fewer, the two methods would be the same at age 0; they begin alike.
  assert np.all(np.asarray(cells["cispo", 0].best) >= 0)
  again = TINY.sweep(["cispo"], steps=(0.4,), ages=(4,), seeds=(2,) * 2, progress=False).cells[0]
  np.testing.assert_allclose(again.final[0], [cells["cispo", 4].final[1][2]] * 2, atol=2e-3)


def test_cells_go_through_a_file(swept, tmp_path):
  path = tmp_path / "cells.jsonl"
  records.append(path, swept.cells[:1])
  records.append(path, swept.cells[1:])
  assert tuple(records.read(path)) == swept.cells
  path.write_text(path.read_text() + '{"method": "cispo"\n')
  with pytest.raises(ValueError, match=r"cells.jsonl, line 5: not a cell .* Fix: delete the line"):
    records.read(path)


def test_the_frontier_is_the_largest_step_that_holds():
  cell = records.Cell("m", "m", {}, 0, 0.0, (0.1, 0.2, 0.4), (0, 1, 2),
                      [[0.95, 0.1, 0.1], [0.97, 0.1, 0.92], [0.2, 0.1, 0.93]],
                      [[0] * 3] * 3, [[0.99] * 3] * 3, [0] * 3, [1] * 3, [], [], (0, 0), 1.0, "")
  np.testing.assert_allclose(records.frontier(cell), [0.2, 0.05, 0.4])
  assert records.best_step(cell) == 1
  np.testing.assert_allclose(tables.difference(cell, dataclasses.replace(cell, seeds=(2, 1, 0))),
                             [0.97 - 0.92, 0, 0.92 - 0.97], atol=1e-9)


@pytest.mark.parametrize("mixture, oldest", [("row", (0.0, 0.0)), ("batch", (0.0, 1.0))])
def test_a_mixture_has_the_ages_that_it_says(mixture, oldest):
  """First tokens of a row are by the oldest policy; or all tokens of every fourth group."""
  setting = Setting("warm", "tabular", length=16, groups=4, group_size=2, mixture=mixture, ring=8)
  part = np.asarray(rows.parts(setting))
  assert part.min() == 0 and part.max() == 3
  assert (part[0, 0], part[2, 0]) == oldest and part[0, -1] == (3 if mixture == "row" else 0)
