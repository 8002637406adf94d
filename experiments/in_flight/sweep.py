"""Completions that continue under new weights, or a whole batch of the policy before?

  python experiments/in_flight/sweep.py --list
  python experiments/in_flight/sweep.py --jobs=2
  python experiments/in_flight/sweep.py --render

Sources of the rollouts x estimators on the task of task.py. Writes the tables of README.md and
accuracy.png beside this file.
"""

from pathlib import Path

import numpy as np

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import accuracy, page_parts, plots, statistics, sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
FRESH, STALE, IN_FLIGHT = "fresh", "staleness 1", "in flight"
SOURCES = {FRESH: (), STALE: ("--config.updates.staleness=1",),
           IN_FLIGHT: ("--config.updates.in_flight=True",)}
PRESETS = {"GRPO": ("grpo", ())}
REFERENCE = STALE  # what the other sources are compared with
HEADER = ("estimator", "rollouts", *accuracy.SAMPLED_HEADER)
SAMPLED_HEADER = ("estimator", "rollouts", "staleness, optimizer steps", "policies of a completion",
                  "tokens trained on, thousands", "decode steps' slots that recomputed prefixes, %",
                  "slots without use, %")
VERDICT_HEADER = ("estimator", "rollouts", f"mean over the run, minus {REFERENCE}",
                  "interval, Holm-corrected", "p", "seeds of this sign", "this page alone")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has whole seeds."""
  return [Cell(f"{name}_{source.replace(' ', '-')}_seed{seed}",
               (f"--config=experiments/in_flight/config.py:{preset}", *flags, *SOURCES[source],
                f"--config.seed={seed}"))
          for seed in SEEDS for name, (preset, flags) in PRESETS.items() for source in SOURCES]


def measure(run: RunFolder) -> dict:
  """Returns what the tables need of a run: accuracies, and what was sampled."""
  def mean(name: str) -> float | None:
    values = run.series(name)[1]
    return round(float(np.mean(values)), 5) if len(values) else None

  return accuracy.measure_sampled(run) | {
      "tokens": float(np.sum(run.series("rollout/tokens")[1])), "age": mean("rollout/staleness"),
      "versions": mean("in_flight/versions"), "fed_again": mean("in_flight/fed_again"),
      "wasted": mean("rollout/wasted_slots")}


def groups(results: dict[str, dict]) -> dict[tuple[str, str], dict[int, dict]]:
  """Returns what was measured by (estimator, source) and seed, in the order of the tables."""
  seeds = sweep_results.by_seed(results)
  keys = [(name, source) for name in PRESETS for source in SOURCES]
  named = {key: seeds.get(f"{key[0]}_{key[1].replace(' ', '-')}", {}) for key in keys}
  return {key: results_of for key, results_of in named.items() if results_of}


def verdicts(results: dict[str, dict]) -> list[tuple]:
  """Returns the lines below VERDICT_HEADER: all comparisons of the page, paired by seed and warm
  start, corrected together.
  """
  means = {key: {seed: accuracy.mean_sampled(record["measured"]) for seed, record in seeds.items()}
           for key, seeds in groups(results).items()}
  return statistics.comparison_rows(means, lambda key: (key[0], REFERENCE))


def sampled_row(records: list[dict]) -> tuple:
  """Returns the cells below SAMPLED_HEADER after the names: means over seeds."""
  def mean(key: str, scale: float, digits: int) -> str:
    values = [record["measured"][key] for record in records]
    return tables.MISSING if None in values else f"{scale * np.mean(values):.{digits}f}"

  return (mean("age", 1, 2), mean("versions", 1, 2), mean("tokens", 1e-3, 0),
          mean("fed_again", 100, 1), mean("wasted", 100, 1))


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  page, by_group = folder / "README.md", groups(results)
  rows = [(*key, *accuracy.sampled_row(list(seeds.values()))) for key, seeds in by_group.items()]
  progress = f"\n{len(results)} of {len(cells())} runs are there."
  page_parts.replace_part(page, "sweep.py, comparison", page_parts.narrow_tables(HEADER, rows, 2)
                      + progress + sweeps.made_at(results))
  page_parts.replace_part(page, "sweep.py, verdicts",
                      tables.markdown_table(VERDICT_HEADER, verdicts(results)))
  rows = [(*key, *sampled_row(list(seeds.values()))) for key, seeds in by_group.items()]
  page_parts.replace_part(page, "sweep.py, sampled",
                          page_parts.narrow_tables(SAMPLED_HEADER, rows, 2))
  shown: dict[str, dict] = {}
  for (name, source), seeds in by_group.items():
    measured = [record["measured"] for record in seeds.values()]
    times = np.array(max((entry["iterations"] for entry in measured), key=len))
    shown.setdefault(name, {})[source] = (
        times, accuracy.padded([entry["sampled"] for entry in measured]))
  if shown:
    plots.plot_panels(shown, folder / "accuracy.png", "sampled accuracy")


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
