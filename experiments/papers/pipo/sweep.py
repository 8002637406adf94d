"""Gain from a further step on the last batch, or from further samples, at equal tokens.

  python experiments/papers/pipo/sweep.py --list
  python experiments/papers/pipo/sweep.py --jobs=2
  python experiments/papers/pipo/sweep.py --render

Methods x group sizes on the task of configs/chain.py. Writes the table of README.md and
accuracy.png beside this file.
"""

from pathlib import Path

import numpy as np

from experiments.tables_lib import accuracy, page_parts, plots, sweeps
from experiments.tables_lib.compare import interval
from experiments.tables_lib.sweeps import Cell, Sweep

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
BASE = ("--config=configs/chain.py", "--config.aggregation.name=token",
        "--config.evaluation.every=3")
GROUPS = {
    "32 groups of 8": (),
    "64 groups of 4": ("--config.rollout.prompts=64", "--config.rollout.group_size=4"),
}
PIPO = ("--config.plugins=experiments.papers.pipo", "--config.transform.name=pipo")
METHODS = {
    "GRPO": (),
    "GRPO, twice the steps": ("--config.updates.optimizer_batches=8",
                              "--config.updates.micro_batches=2"),
    "PIPO": PIPO,
    "PIPO, no step after a fall": (*PIPO, "--config.transform.negative_slope=0.0"),
    "dynamic sampling": ("--config.dynamic_sampling.enabled=true",),
}
PAIRS = tuple((groups, method) for groups in GROUPS for method in METHODS)
BUDGETS = (25_000, 50_000, 100_000, 200_000)  # completion tokens sampled
HEADER = ("groups", "method", *(f"accuracy after {budget // 1000} thousand tokens"
                                for budget in BUDGETS), "tokens until 90 %, thousands")


def _key(groups: str, method: str, seed: int) -> str:
  return f"{groups}_{method}_seed{seed}".lower().replace(",", "").replace(" ", "_")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has whole seeds."""
  return [Cell(_key(groups, method, seed), (*BASE, *GROUPS[groups], *METHODS[method],
                                            f"--config.seed={seed}"))
          for seed in SEEDS for groups, method in PAIRS]


def accuracy_after(runs: list[dict], budget: int) -> np.ndarray:
  """Returns the accuracy of each run at a number of tokens, between evaluations by their line.

  A run that ended early, because no group was left whose rewards differ, keeps its last accuracy.
  """
  return np.array([np.interp(budget, one["tokens"], one["accuracy"]) for one in runs])


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md, and the figure."""
  rows, curves = [], {}
  grid = np.linspace(0, BUDGETS[-1], 41)
  for groups, method in PAIRS:
    keys = [_key(groups, method, seed) for seed in SEEDS]
    if results.keys() >= set(keys):
      runs = [results[key]["measured"] for key in keys]
      rows.append((groups, method, *(interval(accuracy_after(runs, budget)) for budget in BUDGETS),
                   accuracy.tokens_until(runs)))
      if groups == "64 groups of 4":
        curves[method] = (grid, np.array([accuracy_after(runs, at) for at in grid]).T)
  page_parts.replace_part(folder / "README.md", "sweep.py",
                      page_parts.narrow_tables(HEADER, rows, 2) + sweeps.made_at(results))
  if curves:
    plots.plot_groups(curves, folder / "accuracy.png", "accuracy", "tokens sampled")


SWEEP = Sweep(HERE, cells(), accuracy.with_tokens, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
