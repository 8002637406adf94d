"""Which importance ratio holds when rollouts are old?

  python experiments/staleness/sweep.py --list
  python experiments/staleness/sweep.py --jobs=2      what is missing; again after the screening
  python experiments/staleness/sweep.py --add=mine:ideas/estimator.py --seeds=5
  python experiments/staleness/sweep.py --seeds=7           two seeds more
  python experiments/staleness/sweep.py --render

Methods x ages of the rollouts x steps (learning rates) on the task of configs/offpolicy.py. All
ratios but one are to the policy that sampled. One seed screens the steps; each method's best, by
mean sampled accuracy over the run, has five other seeds, which are cells once the screening has its
results. Writes the tables of README.md and accuracy.png beside this file.
"""

import dataclasses
import itertools
from pathlib import Path

import numpy as np

from experiments.tables_lib import accuracy, page_parts, plots, statistics, sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SCREENING, SEEDS = 100, (0, 1, 2, 3, 4)
AGES = {8: 45, 32: 60}  # iterations of a run at each staleness
STEPS = ("3e-5", "1e-4", "3e-4", "1e-3")
PRIMARY = 8  # the staleness at which claims are made
NARROW = "CISPO bounds of GRPO"
REFERENCE = "GRPO"  # what every method is compared with
STARTED = 0.1  # sampled accuracy below which a warm start has not learnt the task
# No weight between the policy that sampled and the anchor is left, if they are the same.
PREFIX = ("--config.correction.level=none", "--config.correction.cap=2.0")
SIZES = ("--config.task.heldout_problems=64",)


@dataclasses.dataclass(frozen=True)
class Method:
  """A preset of configs/offpolicy.py, and what is set beside it.

  Attributes:
    anchor: updates.anchor; empty: the preset's.
  """

  preset: str
  flags: tuple[str, ...] = ()
  anchor: str = "behavior"


METHODS = {
    "no ratio": Method("grpo", ("--config.estimator.name=reinforce",)),
    REFERENCE: Method("grpo"),
    "GRPO, start of the iteration": Method("grpo", anchor="recomputed"),
    "GSPO": Method("gspo"),
    "CISPO": Method("cispo"),
    "MinPRO": Method("minpro"),
    "CTPO": Method("ctpo", PREFIX),
    "full sequence": Method("seq_is"),
    NARROW: Method("cispo", ("--config.estimator.clip_low=0.2",
                             "--config.estimator.clip_high=0.2")),
    "KPop": Method("kpop"),
    "IPO": Method("ipo"),
    "DPPO-TV": Method("dppo_tv"),
    "decoupled PPO": Method("decoupled_ppo", anchor=""),
    "IcePop": Method("icepop", anchor=""),
}
BEST = "CISPO"  # what the practitioner's other choices are compared with
CHOICES = (BEST, "decoupled PPO", "DPPO-TV", "IcePop", "KPop", "IPO", REFERENCE, NARROW, "no ratio")
HEADER = ("staleness", "method", "learning rate", *accuracy.SAMPLED_HEADER)
VERDICT_HEADER = ("interval, Holm-corrected", "p", "seeds of this sign", "this page alone")


def key_of(age: int, name: str, step: str, seed: int) -> str:
  """Returns the name of a run, staleness, method and step joined by underscores."""
  return f"age{age}_{name.replace(', ', '-').replace(' ', '-')}_{step}_seed{seed}"


def cell(age: int, name: str, step: str, seed: int, method: Method) -> Cell:
  """Returns a run."""
  anchor = (f"--config.updates.anchor={method.anchor}",) if method.anchor else ()
  return Cell(key_of(age, name, step, seed), (
      f"--config=configs/offpolicy.py:{method.preset}", *anchor, *method.flags, *SIZES,
      f"--config.updates.staleness={age}", f"--config.iterations={AGES[age]}",
      f"--config.optimizer.learning_rate={step}",
      f"--config.seed={seed}"))


def cells() -> list[Cell]:
  """Returns the runs by staleness: its screening, and then the seeds of each method whose
  screening is complete.
  """
  results = sweep_results.read(HERE)
  out = []
  for age in AGES:
    out += [cell(age, name, step, SCREENING, method)
            for step, (name, method) in itertools.product(STEPS, METHODS.items())]
    out += [cell(age, name, step, seed, method) for seed in SEEDS
            for name, method in METHODS.items() if (step := best_step(results, age, name))]
  return out


def best_step(results: dict[str, dict], age: int, name: str) -> str | None:
  """Returns the step with the highest mean over the run on the screening's seed; None before all
  steps have results.
  """
  return accuracy.best_step(results, {step: key_of(age, name, step, SCREENING) for step in STEPS})


def added(name: str, preset: str, flags: tuple[str, ...], seeds: int) -> list[Cell]:
  """Returns the cells of a method beside METHODS at the primary staleness: its screening, and the
  seeds at its best learning rate once the screening has its results.
  """
  method = Method(preset, flags)
  step = best_step(sweep_results.read(HERE), PRIMARY, name)
  return [*(cell(PRIMARY, name, step, SCREENING, method) for step in STEPS),
          *(cell(PRIMARY, name, step, seed, method) for seed in range(seeds if step else 0))]


def parts(group: str) -> tuple[int, str, str]:
  """Returns (staleness, method, step) of a group of runs; a name not in METHODS stays as it is."""
  age, key, step = group.split("_", 1)[0], *group.split("_", 1)[1].rsplit("_", 1)
  named = {name.replace(", ", "-").replace(" ", "-"): name for name in METHODS}
  return int(age.removeprefix("age")), named.get(key, key), step


def compared(results: dict[str, dict]) -> dict[tuple[int, str, str], dict[int, dict]]:
  """Returns the results by (staleness, method, step) and seed, at the step that the screening
  chose, without seeds whose warm start has not learnt the task: it is the same for all methods.
  """
  groups = {parts(group): seeds for group, seeds in sweep_results.by_seed(results).items()}
  out = {key: {seed: result for seed, result in seeds.items()
                if seed != SCREENING and started(result)}
          for key, seeds in groups.items() if best_step(results, *key[:2]) in (key[2], None)}
  return {key: seeds for key, seeds in sorted(out.items(), key=_order) if seeds}


def started(result: dict) -> bool:
  """Returns whether the warm start of a run has learnt the task."""
  return result["measured"]["sampled"][0] >= STARTED


def _order(entry) -> tuple:
  age, name, *step = entry[0]
  return age, list(METHODS).index(name) if name in METHODS else len(METHODS), name, step


def verdicts(results: dict[str, dict], measure: str) -> str:
  """Returns the table of all comparisons with REFERENCE by one measure, paired by seed and warm
  start, corrected together.
  """
  name_of_measure, read = accuracy.MEASURES[measure]
  values = {key: {seed: read(result["measured"]) for seed, result in seeds.items()}
            for key, seeds in compared(results).items()}
  step = {key[0]: key[2] for key in values if key[1] == REFERENCE}
  rows = statistics.comparison_rows(values, lambda key: (key[0], REFERENCE, step.get(key[0])))
  return tables.markdown_table(
      ("staleness", f"minus {REFERENCE}", f"{name_of_measure}, difference", *VERDICT_HEADER),
      [(age, name, *row) for age, name, _, *row in rows])


def screened(results: dict[str, dict]) -> list[tuple]:
  """Returns a row for each staleness and method: mean and final accuracy at each step."""
  groups: dict[tuple[int, str], dict[str, dict]] = {}
  for key, result in results.items():
    if result["seed"] == SCREENING:
      age, name, step = parts(sweep_results.group(key))
      groups.setdefault((age, name), {})[step] = result
  return [(*key, *(accuracy.screening_cell(steps.get(step)) for step in STEPS))
          for key, steps in sorted(groups.items(), key=_order)]


def progress(results: dict[str, dict]) -> str:
  """Returns a sentence on what is there and what is not."""
  full = len(METHODS) * len(AGES) * (len(STEPS) + len(SEEDS))
  declared = {cell.name for cell in cells()}
  further = len([name for name in results if name not in declared])
  text = f"\n{len(results) - further} of {full} runs are there"
  text += f", and {further} of further seeds or methods." if further else "."
  dead = sorted({result["seed"] for result in results.values() if not started(result)})
  return text + (f" Left out, as the warm start has not learnt the task: seed "
                 f"{', '.join(map(str, dead))}." if dead else "")


def choices(results: dict[str, dict]) -> str:
  """Returns CHOICES beside CISPO at each staleness, those that have seeds: means over seeds by each
  measure, and the differences to CISPO paired by seed, uncorrected.
  """
  seeds = {(age, name): group for (age, name, _), group in compared(results).items()}
  rows = []
  for age, name in itertools.product(AGES, CHOICES):
    cells = []
    for _, read in accuracy.MEASURES.values() if {(age, name), (age, BEST)} <= seeds.keys() else ():
      values, best = ({seed: read(result["measured"]) for seed, result in seeds[age, one].items()}
                      for one in (name, BEST))
      gap = statistics.bootstrap(statistics.paired(values, best))
      cells += [f"{np.mean(list(values.values())):.2f}", "" if name == BEST else
                f"{gap.mean:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"]
    if cells:
      rows.append((str(age), name, str(len(seeds[age, name])), *cells))
  header = (part for measure, _ in accuracy.MEASURES.values()
            for part in (measure, f"minus {BEST}, paired, 95 %"))
  return tables.markdown_table(("staleness", "method", "seeds", *header), rows)


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  page, groups = folder / "README.md", compared(results)
  rows = [(*key, *accuracy.sampled_row(list(seeds.values()))) for key, seeds in groups.items()]
  page_parts.replace_part(page, "sweep.py, comparison", page_parts.narrow_tables(HEADER, rows, 2)
                      + progress(results) + sweeps.made_at(results))
  page_parts.replace_part(page, "sweep.py, choices", choices(results))
  page_parts.replace_part(page, "sweep.py, verdicts", verdicts(results, "mean"))
  page_parts.replace_part(page, "sweep.py, verdicts at the end", verdicts(results, "end"))
  page_parts.replace_part(page, "sweep.py, screening",
                      tables.markdown_table(("staleness", "method", *STEPS), screened(results)))
  shown: dict[str, dict] = {}
  for (age, name, _), seeds in groups.items():
    measured = [result["measured"] for result in seeds.values()]
    lines = {kind: accuracy.padded([entry[kind] for entry in measured])
             for kind in ("sampled", "greedy")}
    times = np.array(max((entry["iterations"] for entry in measured), key=len))
    shown.setdefault(name, {}).update(
        {f"{kind}, staleness {age}": (times, curve) for kind, curve in lines.items()})
  if shown:
    plots.plot_panels(shown, folder / "accuracy.png", "accuracy")


SWEEP = Sweep(HERE, cells(), accuracy.measure_sampled, render, added)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
