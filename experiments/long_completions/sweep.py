"""Old rollouts of 128 tokens: does the order of the methods hold?

  python experiments/long_completions/sweep.py --list
  python experiments/long_completions/sweep.py --jobs=2
  python experiments/long_completions/sweep.py --render

Three ratios to the policy that sampled on the task of configs/offpolicy.py with 128 tokens, at age
8 and one learning rate; and one run with 256 tokens, which only shows that it goes. Writes the
tables of README.md and accuracy.png beside this file.
"""

from pathlib import Path

import numpy as np

from jaxrl_llm.lab import accuracy, statistics, sweep_results, sweeps
from jaxrl_llm.lab.sweeps import Cell, Sweep
from jaxrl_llm.reporting import plots, tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
METHODS = {
    "GRPO": ("grpo",),
    "CISPO": ("cispo",),
    # No weight between the policy that sampled and the anchor is left, if they are the same.
    "CTPO": ("ctpo", "--config.correction.level=none", "--config.correction.cap=2.0"),
}
REFERENCE = "GRPO"
ITERATIONS = {128: 40, 256: 5}
SIZES = ("--config.task.heldout_problems=64", "--config.updates.anchor=behavior")
HEADER = ("tokens", "method", *accuracy.SAMPLED_HEADER)


def cell(tokens: int, name: str, seed: int) -> Cell:
  preset, *flags = METHODS[name]
  return Cell(f"{tokens}_{name}_seed{seed}", (
      f"--config=configs/offpolicy.py:{preset},{tokens}", *flags, *SIZES,
      f"--config.iterations={ITERATIONS[tokens]}", f"--config.seed={seed}"))


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has all methods of a seed; then the long one."""
  return [*(cell(128, name, seed) for seed in SEEDS for name in METHODS),
          cell(256, REFERENCE, 0)]


def differences(results: dict[str, dict]) -> dict[str, np.ndarray]:
  """Returns mean sampled accuracy over the run less REFERENCE's, by method, paired by seed."""
  means = {group.partition("_")[2]: {seed: accuracy.mean_sampled(result["measured"])
                                     for seed, result in seeds.items()}
           for group, seeds in sweep_results.by_seed(results).items() if group.startswith("128_")}
  paired = {name: statistics.paired(means[name], means.get(REFERENCE, {}))
            for name in means if name != REFERENCE}
  return {name: values for name, values in paired.items() if len(values) > 1}


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  groups = {group: [result["measured"] for result in seeds.values()]
            for group, seeds in sweep_results.by_seed(results).items()}
  rows = [(*group.split("_", 1), *accuracy.sampled_row(list(
      sweep_results.by_seed(results)[group].values()))) for group in groups]
  compared, sentence = statistics.table_cells(differences(results))
  tables.replace_part(folder / "README.md", "sweep.py",
                      tables.markdown_table(HEADER, rows) + sweeps.made_at(results))
  tables.replace_part(folder / "README.md", "sweep.py, differences", tables.markdown_table(
      ("128 tokens", f"mean over the run less {REFERENCE}'s"), list(compared.items())) + sentence)
  shown = {group.replace("_", " tokens, "): {
      kind: (np.array(max((entry["iterations"] for entry in measured), key=len)),
             accuracy.padded([entry[kind] for entry in measured]))
      for kind in ("sampled", "greedy")} for group, measured in groups.items()}
  if shown:
    plots.plot_panels(shown, folder / "accuracy.png", "accuracy")


SWEEP = Sweep(HERE, cells(), accuracy.measure_sampled, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
