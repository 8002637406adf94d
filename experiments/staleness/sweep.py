"""Which importance ratio holds when rollouts are old?

  python experiments/staleness/sweep.py --list
  python experiments/staleness/sweep.py --jobs=2
  python experiments/staleness/sweep.py --render

Methods x conditions on the task of configs/offpolicy.py. All methods measure their ratio to the
policy that sampled. One seed screens every method under every condition; the comparisons have five
other seeds. Writes the tables of README.md and accuracy.png beside this file once all runs have
results.
"""

import dataclasses
from pathlib import Path

import numpy as np

from jaxrl_llm.analysis import sweeps
from jaxrl_llm.analysis.sweeps import Cell, Sweep
from jaxrl_llm.reporting import plots, tables
from jaxrl_llm.reporting.compare import interval
from jaxrl_llm.reporting.reader import RunFolder

HERE = Path(__file__).parent
SCREENING, SEEDS = 100, (0, 1, 2, 3, 4)
COLLAPSE = 0.2  # accuracy that a run loses from its best to its last evaluation
PLUGIN = "--config.plugins=experiments/staleness/shuffled.py"


@dataclasses.dataclass(frozen=True)
class Method:
  """A preset of configs/offpolicy.py, and what is set beside it."""

  preset: str
  flags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Condition:
  """What differs from the base: the number of terms, and flags."""

  terms: int = 5
  flags: tuple[str, ...] = ()


ANCHOR = ("--config.updates.anchor=behavior",)
# The ratio is to the policy that sampled, so that no weight between the two is left.
PREFIX = ("--config.correction.level=none",)
METHODS = {
    "none": Method("grpo", ("--config.estimator.name=reinforce",)),
    "GRPO": Method("grpo"),
    "DAPO": Method("dapo"),
    "GSPO": Method("gspo"),
    "CISPO": Method("cispo"),
    "sequence IS": Method("seq_is"),
    "CTPO": Method("ctpo", PREFIX),
    "CTPO, fixed window": Method("ctpo", (*PREFIX, "--config.estimator.power=0.0")),
    "CTPO, shuffled": Method("ctpo", (*PREFIX, PLUGIN, "--config.estimator.name=ctpo_shuffled")),
    "prefix mean": Method("ctpo_geomean", PREFIX),
    "MinPRO": Method("minpro"),
    "MinPRO, unbounded": Method("minpro", ("--config.estimator.clip_high=none",)),
    "MinPRO, two bounds": Method("minpro", ("--config.estimator.clip_low=0.9",)),
    "MinPRO, shuffled": Method("minpro", (PLUGIN, "--config.estimator.name=minpro_shuffled")),
    "CPPO": Method("cppo"),
    "TOPR": Method("topr"),
}
BASE = "base"
CONDITIONS = {
    BASE: Condition(),
    "delay 0": Condition(flags=("--config.updates.staleness=0",)),
    "delay 16": Condition(flags=("--config.updates.staleness=16",)),
    "16 batches": Condition(flags=("--config.updates.optimizer_batches=16",)),
    "step 4e-4": Condition(flags=("--config.optimizer.learning_rate=4e-4",)),
}
# At most 12 pairs of a method and a condition, chosen from the screening.
COMPARED = (
    *((name, BASE) for name in ("none", "GRPO", "GSPO", "CISPO", "sequence IS", "CTPO", "MinPRO")),
)
HEADER = ("method", "condition", "final accuracy", "best accuracy", "collapsed",
          "entropy at the end, nats", "gradient norm", "without gradient, %")


def cells() -> list[Cell]:
  """Returns the runs of the screening, then those of the comparisons."""
  screened = [_cell(name, condition, SCREENING) for condition in CONDITIONS for name in METHODS]
  return screened + [_cell(*pair, seed) for pair in COMPARED for seed in SEEDS]


def _cell(name: str, condition: str, seed: int) -> Cell:
  method, varied = METHODS[name], CONDITIONS[condition]
  return Cell(_key(name, condition, seed), (
      f"--config=configs/offpolicy.py:{method.preset},{varied.terms}", *ANCHOR, *method.flags,
      *varied.flags, f"--config.seed={seed}"))


def _key(name: str, condition: str, seed: int) -> str:
  text = f"{condition}_{name}_seed{seed}".lower().replace(", ", "_")
  return text.replace(" ", "_").replace("4e-4", "4e4")


def measure(run: RunFolder) -> dict:
  """Returns what the tables need of a run."""
  iterations, accuracy = run.series("eval/accuracy")
  return {
      "iterations": iterations.tolist(),
      "accuracy": accuracy.round(6).tolist(),
      "entropy": float(run.series("policy/entropy")[1][-1]),
      "gradient_norm": float(np.mean(run.series("optimizer/grad_norm")[1])),
      "without_gradient": float(np.mean(run.series("clip/dropped")[1])),
      "kl_current_behavior": run.series("kl/current_behavior")[1][-5:].mean().item(),
      "length": float(run.series("rollout/length")[1][-1]),
  }


def compared(results: dict[str, dict]) -> tuple[list[tuple], dict]:
  """Returns the rows below HEADER of the comparisons whose seeds are all there, and the curves of
  those under the base condition by method.
  """
  rows, curves = [], {}
  for name, condition in COMPARED:
    keys = [_key(name, condition, seed) for seed in SEEDS]
    if not results.keys() >= set(keys):
      continue
    found = [results[key]["measured"] for key in keys]
    iterations = max((one["iterations"] for one in found), key=len)
    accuracy = np.array([_whole(one["accuracy"], len(iterations)) for one in found])
    final, best = accuracy[:, -1], accuracy.max(1)
    entropy, norm, dropped = (np.array([one[key] for one in found])
                              for key in ("entropy", "gradient_norm", "without_gradient"))
    rows.append((name, condition, interval(final), interval(best),
                 f"{int(np.sum(best - final > COLLAPSE))} of {len(SEEDS)}", interval(entropy),
                 interval(norm), interval(100 * dropped)))
    if condition == BASE:
      curves[name] = (np.array(iterations), accuracy)
  return rows, curves


def _whole(accuracy: list[float], length: int) -> list[float]:
  """Returns the accuracy of a run that ended early as if its policy had stayed as it was."""
  return accuracy + accuracy[-1:] * (length - len(accuracy))


def screened(results: dict[str, dict]) -> list[tuple]:
  """Returns a row for each method: best -> final accuracy under each condition, of one seed."""
  rows = []
  for name in METHODS:
    keys = [_key(name, condition, SCREENING) for condition in CONDITIONS]
    found = [results[key]["measured"]["accuracy"] if key in results else None for key in keys]
    rows.append((name, *(f"{max(one):.2f} -> {one[-1]:.2f}" if one else tables.MISSING
                         for one in found)))
  return rows


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  rows, curves = compared(results)
  page = folder / "README.md"
  tables.replace_part(page, "sweep.py, comparison", tables.markdown_table(HEADER, rows))
  tables.replace_part(page, "sweep.py, screening",
                      tables.markdown_table(("method", *CONDITIONS), screened(results)))
  if curves:
    plots.plot_groups(curves, folder / "accuracy.png", "eval/accuracy")


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
