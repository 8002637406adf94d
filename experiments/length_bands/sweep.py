"""Does the reward move the lengths of copies into the band, and is their content kept?

  python experiments/length_bands/sweep.py --jobs=2
  python experiments/length_bands/sweep.py --render

Runs of config.py over seeds. Writes the table of README.md beside this file.
"""

from pathlib import Path

import numpy as np

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import page_parts, sweeps
from experiments.tables_lib.compare import interval
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
CONDITIONS = {  # name in files: (name in the table, flags)
    "far": ("32 prompts, 150 iterations", ()),
    "large": ("96 prompts, 200 iterations",
              ("--config.rollout.prompts=96", "--config.iterations=200")),
}
SERIES = {"accuracy": "eval/accuracy", "ratio": "eval/component/ratio",
          "inside": "eval/component/inside"}
SAMPLED = {"ratio": "reward/component/ratio", "inside": "reward/component/inside",
           "accuracy": "reward/correct"}
INSIDE, CONTENT = 0.9, 0.95  # shares that a run must reach
HEADER = ("batch", "when", "mean ratio", "inside the band, %", "content right, %",
          "seeds that pass")


def cells() -> list[Cell]:
  return [Cell(f"{name}_seed{seed}", (
      "--config=experiments/length_bands/config.py", "--config.reward.mode=far",
      f"--config.seed={seed}", *flags))
          for name, (_, flags) in CONDITIONS.items() for seed in SEEDS]


def measure(run: RunFolder) -> dict:
  """Returns held-out series of greedy copies, and what was sampled in the first and last iteration.
  """
  held_out = {name: run.series(metric)[1].round(6).tolist() for name, metric in SERIES.items()}
  sampled = {name: run.series(metric)[1][[0, -1]].round(6).tolist()
             for name, metric in SAMPLED.items()}
  return {"iterations": run.series("eval/accuracy")[0].tolist(), "held_out": held_out,
          "sampled": sampled}


def passes(values: dict[str, float], band: tuple[float, float] = (0.8, 0.9)) -> bool:
  """Whether the mean ratio is inside the band, and so are enough samples, with enough content."""
  return (band[0] <= values["ratio"] <= band[1] and values["inside"] >= INSIDE
          and values["accuracy"] >= CONTENT)


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md."""
  rows = []
  for condition, (title, _) in CONDITIONS.items():
    keys = [f"{condition}_seed{seed}" for seed in SEEDS]
    if results.keys() >= set(keys):
      runs = [results[key]["measured"] for key in keys]
      for name, kind, at in (("held-out, greedy, before", "held_out", 0),
                             ("held-out, greedy, after", "held_out", -1),
                             ("sampled, first iteration", "sampled", 0),
                             ("sampled, last iteration", "sampled", -1)):
        rows.append((title, name, *_row([{key: values[at] for key, values in one[kind].items()}
                                         for one in runs])))
  page_parts.replace_part(folder / "README.md", "sweep.py",
                      tables.markdown_table(HEADER, rows) + sweeps.made_at(results))


def _row(runs: list[dict[str, float]]) -> tuple[str, ...]:
  of = lambda name, factor: interval(factor * np.array([one[name] for one in runs]))
  return (of("ratio", 1), of("inside", 100), of("accuracy", 100),
          f"{sum(map(passes, runs))} of {len(runs)}")


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
