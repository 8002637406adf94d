"""Which importance ratio holds on old rollouts of 128 tokens?

  python experiments/staleness_long/sweep.py --list
  python experiments/staleness_long/sweep.py --jobs=2
  python experiments/staleness_long/sweep.py --seeds=9      two seeds more
  python experiments/staleness_long/sweep.py --render

Three methods of ../staleness at one staleness, each at the step that its screening chose for
completions of 32 tokens; nothing was screened at 128. Writes the tables of README.md and
accuracy.png beside this file.
"""

import functools
from pathlib import Path

from experiments.tables_lib import accuracy, page_parts, plots, statistics, sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SEEDS = tuple(range(7))
AGE, ITERATIONS = 8, 45
REFERENCE = "GRPO"  # what the others are compared with
# Preset, and what is set beside it. As in ../staleness, CTPO has no weight between the policy that
# sampled and the anchor: they are the same.
METHODS = {
    REFERENCE: ("grpo", ("--config.optimizer.learning_rate=1e-4",)),
    "MinPRO": ("minpro", ("--config.optimizer.learning_rate=1e-4",)),
    "CTPO": ("ctpo", ("--config.optimizer.learning_rate=3e-4", "--config.correction.level=none",
                      "--config.correction.cap=2.0")),
}
HEADER = ("method", *accuracy.SAMPLED_HEADER)
CURVE_HEADER = ("method", "seed", "sampled accuracy, every 5 iterations")
VERDICT_HEADER = ("interval, Holm-corrected", "p", "seeds of this sign", "this page alone")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has all methods of a seed."""
  return [Cell(f"{name}_seed{seed}",
               (f"--config=configs/offpolicy.py:{preset},128", *flags,
                "--config.updates.anchor=behavior", f"--config.updates.staleness={AGE}",
                f"--config.iterations={ITERATIONS}", "--config.task.heldout_problems=64",
                f"--config.seed={seed}"))
          for seed in SEEDS for name, (preset, flags) in METHODS.items()]


def verdicts(groups: dict[str, dict[int, dict]], measure: str) -> str:
  """Returns the comparisons of methods, each with its results by seed, by one measure: paired by
  seed and warm start, corrected together.
  """
  name_of_measure, read = accuracy.MEASURES[measure]
  values = {(name,): {seed: read(result["measured"]) for seed, result in seeds.items()}
            for name, seeds in groups.items()}
  return tables.markdown_table(
      (f"minus {REFERENCE}", f"{name_of_measure}, difference", *VERDICT_HEADER),
      statistics.comparison_rows(values, lambda key: (REFERENCE,)))


def render(results: dict[str, dict], folder: Path, planned: int, title: str,
           by_method: dict[str, dict[int, dict]] | None = None) -> None:
  """Writes the tables into README.md, and the figure.

  Args:
    planned: runs.
    title: of the figure.
    by_method: results by method and seed, in the order of the tables; None: those of METHODS.
  """
  page = folder / "README.md"
  if by_method is None:
    seeds_of = sweep_results.by_seed(results)
    by_method = {name: seeds_of[name] for name in METHODS if name in seeds_of}
  rows = [(name, *accuracy.sampled_row(list(seeds.values()))) for name, seeds in by_method.items()]
  progress = f"\n{len(results)} runs; {planned} are planned."
  page_parts.replace_part(page, "sweep.py, comparison", page_parts.narrow_tables(HEADER, rows)
                      + progress + sweeps.made_at(results))
  page_parts.replace_part(page, "sweep.py, verdicts", verdicts(by_method, "mean"))
  page_parts.replace_part(page, "sweep.py, verdicts at the end", verdicts(by_method, "end"))
  curves = [(name, seed, " ".join(f"{value:.2f}" for value in result["measured"]["sampled"]))
            for name, seeds in by_method.items() for seed, result in sorted(seeds.items())]
  page_parts.replace_part(page, "sweep.py, curves", tables.markdown_table(CURVE_HEADER, curves))
  shown = {name: accuracy.panel_curves(list(seeds.values())) for name, seeds in by_method.items()}
  if shown:
    plots.plot_panels(shown, folder / "accuracy.png", title)


SWEEP = Sweep(HERE, cells(), accuracy.measure_sampled, functools.partial(
    render, planned=len(cells()), title="accuracy, 128 tokens"))

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
