"""Which ratio or baseline, where a tool writes a part of the row?

  python experiments/tools/sweep.py --list
  python experiments/tools/sweep.py --jobs=2
  python experiments/tools/sweep.py --render

Methods x tools x the sampler's numerics on the task of configs/quickstart_tools.py. Writes the
table of README.md and accuracy.png beside this file.
"""

from pathlib import Path

import numpy as np

from jaxrl_llm.analysis import sweeps
from jaxrl_llm.analysis.sweeps import Cell, Sweep
from jaxrl_llm.reporting import plots, tables
from jaxrl_llm.reporting.compare import interval
from jaxrl_llm.reporting.reader import RunFolder

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
PRESETS = {"GRPO": "grpo", "GSPO": "gspo", "CTPO": "ctpo", "MinPRO": "minpro", "OTB": "tir_otb"}
CONDITIONS = {
    "calculator": (),
    "calculator, int8": ("--config.rollout.quantization=int8",),
    "calculator, noise 1": ("--config.rollout.logit_noise=1.0",),
    "Python": ("--config.plugins=experiments/tools/task.py", "--config.task.name=python_arithmetic",
               "--config.model.vocab_size=28", "--config.rollout.max_new_tokens=33"),
}
PAIRS = tuple((condition, name) for condition in CONDITIONS for name in PRESETS)
HEADER = ("tool, sampler", "method", "accuracy at the end", "best accuracy",
          "mean accuracy over the run", "rows that call, start", "rows that call, end",
          "mismatch, nats per token")


def _key(condition: str, name: str, seed: int) -> str:
  return f"{condition}_{name}_seed{seed}".lower().replace(",", "").replace(" ", "_")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has whole seeds."""
  return [Cell(_key(condition, name, seed), (
      f"--config=configs/quickstart_tools.py:{PRESETS[name]}", "--config.evaluation.every=5",
      *CONDITIONS[condition], f"--config.seed={seed}"))
      for seed in SEEDS for condition, name in PAIRS]


def measure(run: RunFolder) -> dict:
  """Returns held-out accuracy, tool calls per row, and the mean mismatch of the sampler.

  A call opens a further turn, so a row has one turn more than calls. `tool/calls` counts the last
  turns as well.
  """
  iterations, accuracy = run.series("eval/accuracy")
  calls = run.series("rollout/turns")[1] - 1
  return {"iterations": iterations.tolist(), "accuracy": accuracy.round(6).tolist(),
          "calls": [round(float(calls[0]), 6), round(float(calls[-1]), 6)],
          "mismatch": float(run.series("mismatch/absolute")[1].mean())}


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md, and the figure."""
  rows, curves = [], {}
  for pair in PAIRS:
    keys = [_key(*pair, seed) for seed in SEEDS]
    if results.keys() >= set(keys):
      found = [results[key]["measured"] for key in keys]
      accuracy, calls = (np.array([one[name] for one in found]) for name in ("accuracy", "calls"))
      rows.append((*pair, interval(accuracy[:, -1]), interval(accuracy.max(1)),
                   interval(accuracy.mean(1)), interval(calls[:, 0]), interval(calls[:, -1]),
                   interval(np.array([one["mismatch"] for one in found]))))
      curves[", ".join(pair)] = (np.array(found[0]["iterations"]), accuracy)
  tables.replace_part(folder / "README.md", "sweep.py",
                      tables.markdown_table(HEADER, rows) + sweeps.made_at(results))
  if curves:
    plots.plot_groups(curves, folder / "accuracy.png", "eval/accuracy")


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
