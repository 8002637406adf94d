"""Which ratio or baseline, where a tool writes a part of the row?

  python experiments/tools/sweep.py --list
  python experiments/tools/sweep.py --jobs=2
  python experiments/tools/sweep.py --render

Methods x tools x the sampler's numerics on the task of configs/quickstart_tools.py. Writes the
table of README.md and accuracy.png beside this file.
"""

from pathlib import Path

import numpy as np

from jaxrl_llm.lab import statistics, sweeps
from jaxrl_llm.lab.accuracy import curves
from jaxrl_llm.lab.sweeps import Cell, Sweep
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
LESS, LESS_PLAIN = "minus GRPO's", "minus that of the trainer's numerics"
HEADER = ("tool, sampler", "method", "accuracy at the end", "best accuracy",
          "mean accuracy over the run", LESS, LESS_PLAIN,
          "completions that call, start", "completions that call, end", "mismatch, nats per token")


def _key(condition: str, name: str, seed: int) -> str:
  return f"{condition}_{name}_seed{seed}".lower().replace(",", "").replace(" ", "_")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has whole seeds."""
  return [Cell(_key(condition, name, seed), (
      f"--config=configs/quickstart_tools.py:{PRESETS[name]}", "--config.evaluation.every=5",
      *CONDITIONS[condition], f"--config.seed={seed}"))
      for seed in SEEDS for condition, name in PAIRS]


def measure(run: RunFolder) -> dict:
  """Returns held-out accuracy, tool calls per completion, and the mean mismatch of the sampler.

  A call opens a further turn, so a row has one turn more than calls. `tool/calls` counts the last
  turns as well.
  """
  iterations, accuracy = run.series("eval/accuracy")
  calls = run.series("rollout/turns")[1] - 1
  return {"iterations": iterations.tolist(), "accuracy": accuracy.round(6).tolist(),
          "calls": [round(float(calls[0]), 6), round(float(calls[-1]), 6)],
          "mismatch": float(run.series("mismatch/absolute")[1].mean())}


def _accuracy(results: dict[str, dict], condition: str, name: str) -> np.ndarray | None:
  """[seeds, evaluations]; None unless all seeds are there."""
  keys = [_key(condition, name, seed) for seed in SEEDS]
  if not results.keys() >= set(keys):
    return None
  return curves([results[key]["measured"] for key in keys])[1]


def differences(results: dict[str, dict]) -> dict[tuple, np.ndarray]:
  """Returns what a method's mean accuracies are above another's, seed by seed, by (condition,
  method, column): a seed decides warm start and problems.
  """
  means = {pair: accuracy.mean(1) for pair in PAIRS
           if (accuracy := _accuracy(results, *pair)) is not None}
  plain = next(iter(CONDITIONS))
  others = {(*pair, LESS): (pair[0], "GRPO") for pair in means if pair[1] != "GRPO"}
  others |= {(*pair, LESS_PLAIN): (plain, pair[1]) for pair in means
             if pair[0] != plain and pair[0].startswith(plain)}
  return {key: means[key[:2]] - means[other] for key, other in others.items() if other in means}


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md, and the figure."""
  rows, shown = [], {}
  less, sentence = statistics.table_cells(differences(results))
  for condition, name in PAIRS:
    accuracy = _accuracy(results, condition, name)
    if accuracy is not None:
      found = [results[_key(condition, name, seed)]["measured"] for seed in SEEDS]
      calls = np.array([one["calls"] for one in found])
      rows.append((
          condition, name, interval(accuracy[:, -1]), interval(accuracy.max(1)),
          interval(accuracy.mean(1)),
          *(less.get((condition, name, column), tables.MISSING) for column in (LESS, LESS_PLAIN)),
          interval(calls[:, 0]), interval(calls[:, -1]),
          interval(np.array([one["mismatch"] for one in found]))))
      shown.setdefault(condition, {})[name] = curves(found)
  tables.replace_part(folder / "README.md", "sweep.py",
                      tables.markdown_table(HEADER, rows) + sentence + sweeps.made_at(results))
  if shown:
    plots.plot_panels(shown, folder / "accuracy.png", "held-out accuracy")


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
