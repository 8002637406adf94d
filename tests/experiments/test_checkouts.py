"""experiments/bench/checkouts.py: ratios are those of rounds, and the page is of the results."""

import json
from pathlib import Path

import experiment_files

BENCH = Path(__file__).parents[2] / "experiments" / "bench"
checkouts = experiment_files.load(BENCH / "checkouts.py")


def test_a_machine_that_slows_down_between_rounds_changes_no_ratio():
  """Wrong: the quotient of the medians over all rounds, which is a half here."""
  rounds = [{"before": {"iteration": [1.0, 1.0, 9.0]}, "now": {"iteration": [2.0, 2.0, 2.0]}},
            {"before": {"iteration": [10.0] * 3}, "now": {"iteration": [5.0] * 3}},
            {"before": {"iteration": [20.0] * 3}, "now": {"iteration": [22.0] * 3}}]
  (row,) = checkouts.table(rounds).splitlines()[2:]
  assert [cell.strip() for cell in row.split("|")[1:-1]] == [
      "whole iteration", "10.00", "5.00", "1.10", "0.50 to 2.00", "3"]


def test_a_part_that_some_rounds_left_out_is_of_the_others():
  rounds = [{side: {"generation": [1.0]} for side in ("before", "now")},
            {side: {"generation": [1.0], "iteration": [1.0]} for side in ("before", "now")}]
  cells = [row.split("|") for row in checkouts.table(rounds).splitlines()[2:]]
  assert [(row[1].strip(), row[-2].strip()) for row in cells] == [
      ("generation", "2"), ("whole iteration", "1")]


def test_the_page_is_rendered_from_the_results():
  text = checkouts.table(json.loads(checkouts.RESULT.read_text())["rounds"])
  assert text.strip() in (BENCH / "README.md").read_text()
