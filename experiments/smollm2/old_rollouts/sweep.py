"""Which importance ratio holds when SmolLM2-135M-Instruct learns from old worked answers?

  python experiments/main.py --config=configs/smollm2_slips.py --workdir=runs/slips \
      --config.iterations=1
  python experiments/export.py --workdir=runs/slips --checkpoint=0 --plugins=run \
      --out=runs/slips_start
  python experiments/smollm2/old_rollouts/sweep.py --list
  python experiments/smollm2/old_rollouts/sweep.py                  what is missing
  python experiments/smollm2/old_rollouts/sweep.py --only=2e-5_seed0
  python experiments/smollm2/old_rollouts/sweep.py --render

All runs begin at the model after the imitation of the recipe with slips, which the first two
commands make. Rollouts come from the policy of eight iterations before; all ratios are to the
policy that sampled. Writes the tables of README.md and accuracy.png beside this file.
"""

import functools
from pathlib import Path

from experiments.tables_lib import accuracy, page_parts, plots, statistics, sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
START = "runs/slips_start"
AGE, ITERATIONS = 8, 24
LEARNING_RATES = ("2e-5", "1e-5")
SCREENING, OTHERS = 0, (1, 2)  # seeds: of all learning rates, of each method's best
FEWEST = 3  # seeds of a comparison
REFERENCE = "GRPO"  # what the others are compared with
FRESH = "GRPO, fresh rollouts"
# As in ../../staleness, CTPO has no weight between the policy that sampled and the anchor: they are
# the same.
METHODS = {
    REFERENCE: ("grpo", ()),
    "CISPO": ("cispo", ()),
    "no ratio": ("grpo", ("--config.estimator.name=reinforce",)),
    "CTPO": ("ctpo", ("--config.correction.level=none", "--config.correction.cap=2.0")),
    "MinPRO": ("minpro", ()),
    FRESH: ("grpo", ()),
}
# Half of the recipe's batch, so that a run ends in a quarter of an hour on two cores.
SIZES = ("--config.plugins=experiments/smollm2/chains.py", "--config.rollout.prompts=4",
         f"--config.iterations={ITERATIONS}",
         "--config.task.heldout_problems=48", "--config.evaluation.every=12",
         "--config.evaluation.samples=8", "--config.checkpoint.every=12")
HEADER = ("method, learning rate", *accuracy.SAMPLED_HEADER)
VERDICT_HEADER = ("interval, Holm-corrected", "p", "seeds of this sign", "this page alone")


def cells() -> list[Cell]:
  """Returns the runs: all learning rates on one seed, then the other seeds of each method whose
  learning rates are all there.
  """
  results = sweep_results.read(HERE)
  out = [cell(name, rate, SCREENING) for rate in LEARNING_RATES for name in METHODS]
  return out + [cell(name, rate, seed) for seed in OTHERS for name in METHODS
                if (rate := best_rate(results, name))]


def best_rate(results: dict[str, dict], name: str) -> str | None:
  """Returns the learning rate with the highest mean over the run; None before all have results."""
  return accuracy.best_step(
      results, {rate: cell(name, rate, SCREENING).name for rate in LEARNING_RATES})


def cell(name: str, rate: str, seed: int) -> Cell:
  """Returns a run."""
  preset, flags = METHODS[name]
  age = () if name == FRESH else (f"--config.updates.staleness={AGE}",)
  return Cell(f"{name.replace(', ', '-').replace(' ', '-')}_{rate}_seed{seed}", (
      f"--config=configs/smollm2_slips.py:{preset}", *flags, f"--config.pretrained={START}",
      "--config.warm_start.steps=0", "--config.updates.anchor=behavior", *age, *SIZES,
      f"--config.optimizer.learning_rate={rate}", "--config.optimizer.warmup_steps=4",
      f"--config.seed={seed}"))


def groups(results: dict[str, dict]) -> dict[tuple[str, str], dict[int, dict]]:
  """Returns the results by (method, learning rate) and seed, in the order of METHODS."""
  seeds = sweep_results.by_seed(results)
  names = {(name, rate): sweep_results.group(cell(name, rate, 0).name)
           for rate in LEARNING_RATES for name in METHODS}
  return {key: seeds[name] for key, name in names.items() if name in seeds}


def verdicts(results: dict[str, dict], measure: str) -> str:
  """Returns the comparisons by one measure, each method at its best learning rate: paired by seed,
  corrected together; a line instead while they have fewer than FEWEST seeds.
  """
  name_of_measure, read = accuracy.MEASURES[measure]
  values = {(name,): {seed: read(result["measured"]) for seed, result in seeds.items()}
            for (name, rate), seeds in groups(results).items() if rate == best_rate(results, name)}
  if min(map(len, values.values()), default=0) < FEWEST:
    return (f"None yet, {name_of_measure}: a method has fewer than {FEWEST} seeds at its best "
            "learning rate.\n")
  return tables.markdown_table(
      (f"minus {REFERENCE}", f"{name_of_measure}, difference", *VERDICT_HEADER),
      statistics.comparison_rows(values, lambda key: (REFERENCE,)))


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  by_method = groups(results)
  write = functools.partial(page_parts.replace_part, folder / "README.md")
  rows = [(", ".join(key), *accuracy.sampled_row(list(seeds.values())))
          for key, seeds in by_method.items()]
  write("sweep.py, comparison", page_parts.narrow_tables(HEADER, rows)
        + sweeps.made_at(results))
  write("sweep.py, verdicts", verdicts(results, "mean"))
  write("sweep.py, verdicts at the end", verdicts(results, "end"))
  shown = {f"{name}, {rate}": accuracy.panel_curves(list(seeds.values()))
           for (name, rate), seeds in by_method.items()}
  if shown:
    plots.plot_panels(shown, folder / "accuracy.png", "accuracy, SmolLM2-135M-Instruct")


SWEEP = Sweep(HERE, cells(), accuracy.measure_sampled, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
