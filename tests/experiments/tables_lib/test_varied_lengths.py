"""The runs that the tables of lengths that vary are made of."""

from pathlib import Path

import pytest

from experiments.tables_lib import sweeps

FILE = Path(__file__).parents[3] / "experiments/staleness_lengths/sweep.py"


def result(seed: int, sampled: float) -> dict:
  return {"seed": seed, "measured": {"sampled": [0.3, sampled]}}


@pytest.mark.parametrize("best", ["3e-5", "3e-4"])
def test_a_method_is_at_the_rate_that_its_screening_chose(best):
  sweep = sweeps.module(FILE)
  screening = {sweep.cell("CISPO", rate, sweep.SCREENING).name:
               result(sweep.SCREENING, 0.5 + 0.1 * (rate == best)) for rate in sweep.LEARNING_RATES}
  # Other seeds were better elsewhere, which chooses nothing.
  seeds = {sweep.cell("CISPO", rate, seed).name: result(seed, 0.5 + 0.1 * (rate != best))
           for rate in sweep.LEARNING_RATES for seed in (0, 1)}
  chosen = sweep.by_method(screening | seeds)["CISPO"]
  assert chosen == {seed: seeds[sweep.cell("CISPO", best, seed).name] for seed in (0, 1)}


def test_without_a_full_screening_a_method_is_in_no_table():
  sweep = sweeps.module(FILE)
  names = [sweep.cell("GRPO", rate, sweep.SCREENING).name for rate in sweep.LEARNING_RATES]
  partial = {name: result(sweep.SCREENING, 0.5) for name in names[1:]}
  assert sweep.by_method(partial | {sweep.cell("GRPO", "3e-4", 0).name: result(0, 0.5)}) == {}
