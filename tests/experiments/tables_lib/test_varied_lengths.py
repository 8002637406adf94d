"""The runs that the tables of lengths that vary are made of."""

from pathlib import Path

import pytest

from experiments.tables_lib import sweeps

sweep = sweeps.module(Path(__file__).parents[3] / "experiments/staleness_lengths/sweep.py")


def result(seed: int, sampled: float) -> dict:
  return {"seed": seed, "measured": {"sampled": [0.3, sampled]}}


def screening(name: str, means: dict[str, tuple[float, ...]]) -> dict[str, dict]:
  """Results of a screening: sampled accuracy of each seed at each learning rate."""
  return {sweep.cell(name, rate, seed).name: result(seed, value)
          for rate, values in means.items()
          for seed, value in zip(sweep.SCREENING, values, strict=False)}


@pytest.mark.parametrize(("third", "best"), [(0.1, "1e-4"), (0.6, "3e-4")])
def test_a_method_is_at_the_rate_that_its_screening_chose(third, best):
  """The best rate of the first seed is not that of three, where it failed on one of them."""
  runs = screening("CISPO", {"3e-5": (0.4,), "1e-4": (0.5, 0.5, 0.5),
                                    "3e-4": (0.6, 0.6, third), "1e-3": (0.1,)})
  # Other seeds were better elsewhere, which chooses nothing.
  seeds = {sweep.cell("CISPO", rate, seed).name: result(seed, 0.5 + 0.1 * (rate != best))
           for rate in sweep.LEARNING_RATES for seed in (0, 1)}
  chosen = sweep.by_method(runs | seeds)["CISPO"]
  assert chosen == {seed: seeds[sweep.cell("CISPO", best, seed).name] for seed in (0, 1)}


@pytest.mark.parametrize("means", [{"1e-4": (0.5,)},
                                   {"3e-5": (0.4,), "1e-4": (0.5, 0.5, 0.5), "3e-4": (0.6, 0.6),
                                    "1e-3": (0.1,)}])
def test_without_a_full_screening_a_method_is_in_no_table(means):
  seed = {sweep.cell("GRPO", "3e-4", 0).name: result(0, 0.5)}
  assert sweep.by_method(screening("GRPO", means) | seed) == {}
