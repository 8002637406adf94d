"""Which importance ratio holds on old rollouts whose lengths vary?

  python experiments/staleness_lengths/sweep.py --list
  python experiments/staleness_lengths/sweep.py --jobs=2       what is missing
  python experiments/staleness_lengths/sweep.py --render

Methods of ../staleness at one staleness on the task of task.py. One seed screens the learning
rates, two further ones the better two; each method's best, by mean sampled accuracy over the three
runs, has seven other seeds. Runs are cells once those before them have results, so start it three
times. Writes the tables of README.md and accuracy.png beside this file.
"""

from pathlib import Path

from experiments.tables_lib import accuracy, page_parts, statistics, sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
staleness_long = sweeps.module(HERE.parent / "staleness_long/sweep.py")
SCREENING, SEEDS = (100, 101, 102), tuple(range(7))
LEARNING_RATES = ("3e-5", "1e-4", "3e-4", "1e-3")
AGE, ITERATIONS = 8, 45
SECOND_REFERENCE = "CISPO"  # beside GRPO
# Preset, and what is set beside it, as in ../staleness.
METHODS = {
    "no ratio": ("grpo", ("--config.estimator.name=reinforce",)),
    staleness_long.REFERENCE: ("grpo", ()),
    "GSPO": ("gspo", ()),
    "CISPO": ("cispo", ()),
    "MinPRO": ("minpro", ()),
    "CTPO": ("ctpo", ("--config.correction.level=none", "--config.correction.cap=2.0")),
    "full sequence": ("seq_is", ()),
}
PLANNED = len(METHODS) * (len(LEARNING_RATES) + 4 + len(SEEDS))
# Twice the mistakes of the task of one length: shorter completions meet fewer.
TASK = ("--config.plugins=experiments/staleness_lengths/task.py",
        "--config.task.name=stopping_recurrence", "--config.task.mistake_contexts=(4, 4, 8)",
        "--config.task.misread=4", "--config.rollout.min_new_tokens=2",
        "--config.task.heldout_problems=64")


def group(name: str, rate: str) -> str:
  """Returns what the names of a method's runs at a learning rate begin with."""
  return f"{name.replace(' ', '-')}_{rate}"


def cell(name: str, rate: str, seed: int) -> Cell:
  """Returns a run."""
  preset, flags = METHODS[name]
  return Cell(f"{group(name, rate)}_seed{seed}",
              (f"--config=configs/offpolicy.py:{preset}", *TASK, *flags,
               "--config.updates.anchor=behavior", f"--config.updates.staleness={AGE}",
               f"--config.optimizer.learning_rate={rate}", f"--config.iterations={ITERATIONS}",
               f"--config.seed={seed}"))


def screened(results: dict[str, dict], name: str, rate: str) -> list[dict]:
  """Returns the results of a method's screening at a learning rate."""
  return [results[key] for seed in SCREENING if (key := cell(name, rate, seed).name) in results]


def better_rates(results: dict[str, dict], name: str) -> list[str]:
  """Returns the two learning rates with the highest means over the run of the first seed; none
  before all have results.
  """
  first = {rate: cell(name, rate, SCREENING[0]).name for rate in LEARNING_RATES}
  if not results.keys() >= set(first.values()):
    return []
  mean = lambda rate: accuracy.mean_sampled(results[first[rate]]["measured"])
  return sorted(LEARNING_RATES, key=mean, reverse=True)[:2]


def best_rate(results: dict[str, dict], name: str) -> str | None:
  """Returns the better of the two with the highest mean over seeds and run; None before both have
  all seeds of the screening.
  """
  runs = {rate: screened(results, name, rate) for rate in better_rates(results, name)}
  if not runs or min(map(len, runs.values())) < len(SCREENING):
    return None
  return max(runs, key=lambda rate: sum(accuracy.mean_sampled(run["measured"])
                                        for run in runs[rate]))


def cells() -> list[Cell]:
  """Returns the screening of all rates, of the better two, and then seed by seed the methods whose
  screening is complete.
  """
  results = sweep_results.read(HERE)
  first = [cell(name, rate, SCREENING[0]) for name in METHODS for rate in LEARNING_RATES]
  second = [cell(name, rate, seed) for seed in SCREENING[1:] for name in METHODS
            for rate in better_rates(results, name)]
  return first + second + [cell(name, rate, seed) for seed in SEEDS for name in METHODS
                           if (rate := best_rate(results, name))]


def by_method(results: dict[str, dict]) -> dict[str, dict[int, dict]]:
  """Returns the results by method and seed, each method at its best learning rate."""
  seeds = sweep_results.by_seed({name: result for name, result in results.items()
                                 if result["seed"] not in SCREENING})
  groups = {name: group(name, rate) for name in METHODS if (rate := best_rate(results, name))}
  return {name: seeds[key] for name, key in groups.items() if key in seeds}


def second_differences(results: dict[str, dict]) -> str:
  """Returns the differences to CISPO by each measure, paired by seed, uncorrected."""
  rows = []
  for name, runs in by_method(results).items():
    gaps = []
    for _, read in accuracy.MEASURES.values() if name != SECOND_REFERENCE else ():
      values, second = ({seed: read(result["measured"]) for seed, result in seeds.items()}
                      for seeds in (runs, by_method(results).get(SECOND_REFERENCE, {})))
      if len(values.keys() & second.keys()) > 1:
        gap = statistics.bootstrap(statistics.paired(values, second))
        gaps.append(f"{gap.mean:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})")
    if gaps:
      rows.append((name, *gaps))
  measures = (label for label, _ in accuracy.MEASURES.values())
  header = (f"minus {SECOND_REFERENCE}, paired, 95 %", *measures)
  return tables.markdown_table(header, rows)


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  rows = [(name, *(", ".join(f"{accuracy.mean_sampled(run['measured']):.2f}"
                             for run in screened(results, name, rate)) or tables.MISSING
                   for rate in LEARNING_RATES)) for name in METHODS]
  page = folder / "README.md"
  page_parts.replace_part(page, "sweep.py, screening",
                          tables.markdown_table(("method", *LEARNING_RATES), rows))
  page_parts.replace_part(page, "sweep.py, beside CISPO", second_differences(results))
  staleness_long.render(results, folder, PLANNED, "accuracy, lengths that vary", by_method(results))


SWEEP = Sweep(HERE, cells(), accuracy.measure_sampled, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
