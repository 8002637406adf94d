"""Figures of a measurement that is made again: another folder, and what differs."""

import copy
import json
import shutil

import pytest

from experiments.smollm2 import measurement, prefix_ratios

PAGE, FIGURES = (measurement.HERE / name for name in ("README.md", "prefix_ratios.json"))


@pytest.fixture
def committed():
  return json.loads(FIGURES.read_text())


def test_another_folder_gets_everything_and_the_page_nothing(tmp_path, capsys):
  before = PAGE.read_bytes()
  shutil.copy(FIGURES, tmp_path)
  measurement.write("prefix_ratios", prefix_ratios.text, prefix_ratios.draw, tmp_path)
  assert PAGE.read_bytes() == before
  assert (tmp_path / "prefix_ratios.md").read_text().strip() in PAGE.read_text()
  assert (tmp_path / "prefix_ratios.png").stat().st_size > 1000
  equal, total = capsys.readouterr().out.split(" committed numbers are equal.")[0].split(" of ")
  assert equal == total and int(total) > 100


def test_a_number_that_differs_is_named(committed):
  other = copy.deepcopy(committed)
  other["1"]["slope"] *= 1.5
  other["2"]["positions"]["32"]["mean"] += 1e-9
  lines = measurement.differences(committed, other).splitlines()
  assert lines[0].startswith(f"{int(lines[0].split(' of ')[1].split()[0]) - 2} of ")
  assert lines[1].startswith("1/slope: 3.6") and lines[2].startswith("2/positions/32/mean")
  assert len(lines) == 3


def test_a_number_that_only_one_has_is_named(committed):
  """Wrong: what both have is compared, so that a file without the last policy would be equal."""
  other = copy.deepcopy(committed)
  del other["8"]
  shared = {key: committed[key] for key in other}
  assert measurement.differences(shared, other).count("\n") == 0
  assert "only committed" in measurement.differences(committed, other)
  assert "only here" in measurement.differences(other, committed)
