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

from jaxrl_llm.lab import accuracy, sweeps
from jaxrl_llm.lab.sweeps import Cell, Sweep
from jaxrl_llm.reporting import plots, tables

HERE = Path(__file__).parent
SCREENING, SEEDS = 100, (0, 1, 2, 3, 4)
PLUGIN = "--config.plugins=experiments/staleness/shuffled.py"


@dataclasses.dataclass(frozen=True)
class Method:
  """A preset of configs/offpolicy.py, and what is set beside it.

  Attributes:
    behavior: what a ratio to the policy that sampled needs beside it.
    recomputed: whether the preset's own ratio is to the policy at the start of the iteration.
  """

  preset: str
  flags: tuple[str, ...] = ()
  behavior: tuple[str, ...] = ()
  recomputed: bool = False


@dataclasses.dataclass(frozen=True)
class Condition:
  """What differs from the base: the number of terms, the ratio's denominator, and flags.

  Attributes:
    behavior: whether all ratios are to the policy that sampled, or to what each preset has.
  """

  terms: int = 5
  behavior: bool = True
  flags: tuple[str, ...] = ()


# No weight between the policy that sampled and the anchor is left, if they are the same.
PREFIX = ("--config.correction.level=none", "--config.correction.cap=2.0")
METHODS = {
    "none": Method("grpo", ("--config.estimator.name=reinforce",)),
    "GRPO": Method("grpo", recomputed=True),
    "GSPO": Method("gspo", recomputed=True),
    "CISPO": Method("cispo"),
    "sequence IS": Method("seq_is"),
    "CTPO": Method("ctpo", (), PREFIX, recomputed=True),
    "MinPRO": Method("minpro"),
    "DAPO": Method("dapo", recomputed=True),
    "CTPO, fixed window": Method("ctpo", ("--config.estimator.power=0.0",), PREFIX),
    "CTPO, shuffled": Method("ctpo", (PLUGIN, "--config.estimator.name=ctpo_shuffled"), PREFIX),
    "prefix mean": Method("ctpo_geomean", (), PREFIX, recomputed=True),
    "MinPRO, unbounded": Method("minpro", ("--config.estimator.clip_high=none",)),
    "MinPRO, two bounds": Method("minpro", ("--config.estimator.clip_low=0.9",)),
    "MinPRO, shuffled": Method("minpro", (PLUGIN, "--config.estimator.name=minpro_shuffled")),
    "CPPO": Method("cppo"),
    "TOPR": Method("topr"),
}
BASE = "base"
STEP = ("--config.optimizer.learning_rate=4e-4",)
CONDITIONS = {
    BASE: Condition(),
    "step 4e-4": Condition(flags=STEP),
    "own anchors": Condition(behavior=False),
    "own anchors, step 4e-4": Condition(behavior=False, flags=STEP),
    "delay 0": Condition(flags=("--config.updates.staleness=0",)),
    "delay 16": Condition(flags=("--config.updates.staleness=16",)),
    "16 batches": Condition(flags=("--config.updates.optimizer_batches=16",)),
}
# At most 12 pairs of a method and a condition, chosen from the screening.
COMPARED = (
    *((name, BASE) for name in ("none", "GRPO", "GSPO", "CTPO", "CISPO", "sequence IS", "MinPRO")),
    ("GRPO", "own anchors"),
    *((name, "step 4e-4") for name in ("GSPO", "CISPO", "sequence IS", "MinPRO")),
)
HEADER = ("method", "condition", *accuracy.HEADER)


def cells() -> list[Cell]:
  """Returns the runs of the screening, then those of the comparisons."""
  screened = [_cell(name, condition, SCREENING) for condition, varied in CONDITIONS.items()
              for name, method in METHODS.items() if varied.behavior or method.recomputed]
  return screened + [_cell(*pair, seed) for pair in COMPARED for seed in SEEDS]


def _cell(name: str, condition: str, seed: int) -> Cell:
  method, varied = METHODS[name], CONDITIONS[condition]
  anchor = ("--config.updates.anchor=behavior", *method.behavior) if varied.behavior else ()
  return Cell(_key(name, condition, seed), (
      f"--config=configs/offpolicy.py:{method.preset},{varied.terms}", *anchor, *method.flags,
      *varied.flags, f"--config.seed={seed}"))


def _key(name: str, condition: str, seed: int) -> str:
  text = f"{condition}_{name}_seed{seed}".lower().replace(", ", "_")
  return text.replace(" ", "_").replace("4e-4", "4e4")


def compared(results: dict[str, dict]) -> tuple[list[tuple], dict]:
  """Returns the rows below HEADER of the comparisons whose seeds are all there, and their curves
  by method and condition.
  """
  rows, curves = [], {}
  for name, condition in COMPARED:
    keys = [_key(name, condition, seed) for seed in SEEDS]
    if results.keys() >= set(keys):
      found = [results[key]["measured"] for key in keys]
      rows.append((name, condition, *accuracy.row(found)))
      curves.setdefault(name, {})[condition] = accuracy.curves(found)
  return rows, curves


def screened(results: dict[str, dict]) -> list[tuple]:
  """Returns a row for each method: best -> final accuracy under each condition, of one seed."""
  rows = []
  for name in METHODS:
    keys = [_key(name, condition, SCREENING) for condition in CONDITIONS]
    rows.append((name, *(accuracy.best_to_final(results[key]["measured"]) if key in results
                         else tables.MISSING for key in keys)))
  return rows


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  rows, curves = compared(results)
  page = folder / "README.md"
  tables.replace_part(page, "sweep.py, comparison",
                      tables.markdown_table(HEADER, rows) + sweeps.made_at(results))
  tables.replace_part(page, "sweep.py, screening",
                      tables.markdown_table(("method", *CONDITIONS), screened(results)))
  if curves:
    plots.plot_panels(curves, folder / "accuracy.png", "held-out accuracy")


SWEEP = Sweep(HERE, cells(), accuracy.measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
