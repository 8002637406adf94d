"""Only missing seeds are measured, and the page shows all of its own."""

import json
import sys

import pytest

from experiments.tables_lib import seed_results


@pytest.fixture
def command(tmp_path, monkeypatch):
  """Runs the command with flags; returns the seeds that it measured."""

  def run(*flags):
    measured = []

    def measure(seed):
      measured.append(seed)
      return {"value": seed**2}

    def write_tables(results, page):
      page.write_text(str([one["value"] for one in results]))

    monkeypatch.setattr(sys, "argv", ["run.py", *flags])
    seed_results.main("", tmp_path, (0, 1, 2), measure, write_tables)
    return measured

  return run


def test_missing_seeds_are_measured_and_the_page_is_written(command, tmp_path):
  (tmp_path / "results").mkdir()
  (tmp_path / "results/seed1.json").write_text('{"value": 70}')
  assert command() == [0, 2]
  assert (tmp_path / "README.md").read_text() == "[0, 70, 4]"
  (tmp_path / "results/seed0.json").write_text('{"value": 50}')
  assert command("--render") == []
  assert (tmp_path / "README.md").read_text() == "[50, 70, 4]"


def test_other_seeds_go_elsewhere_and_leave_the_page(command, tmp_path):
  out = tmp_path / "mine"
  assert command("--seeds", "7", "8", f"--out={out}") == [7, 8]
  assert json.loads((out / "results/seed8.json").read_text()) == {"value": 64}
  assert not (tmp_path / "README.md").exists() and not (tmp_path / "results").exists()
