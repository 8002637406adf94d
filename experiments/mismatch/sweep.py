"""Does training differ where the sampler computes in other numerics?

  python experiments/mismatch/sweep.py --list
  python experiments/mismatch/sweep.py --jobs=2     # again after the screening
  python experiments/mismatch/sweep.py --render

Samplers x corrections on the task of configs/offpolicy.py with fresh rollouts, so that numerics are
the only difference between sampler and trainer. Writes tables of README.md and training.png beside
this file.
"""

from pathlib import Path

import numpy as np

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import accuracy, page_parts, plots, statistics, sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SCREENING = 100  # its seed
SEEDS = (0, 1, 2, 3, 5, 6, 7)  # seed 4's warm start has not learned (experiments/staleness)
RATES = ("1e-4", "3e-4")
BASE = ("--config=configs/offpolicy.py:grpo", "--config.updates.staleness=0",
        "--config.updates.anchor=recomputed", "--config.iterations=30",
        "--config.task.heldout_problems=128")
TRAINERS, NOTHING = "the trainer's", "nothing"
SAMPLERS = {
    TRAINERS: (),
    "bfloat16": ("--config.rollout.dtype=bfloat16",),
    "int8, bfloat16": ("--config.rollout.quantization=int8", "--config.rollout.dtype=bfloat16"),
    "noise 1": ("--config.rollout.logit_noise=1.0",),
    "noise 2": ("--config.rollout.logit_noise=2.0",),
}
NOISY = "noise 2"  # the largest gap
PRUNED = "--config.vocabulary.min_p=0.05"
CORRECTIONS = {
    NOTHING: (),
    "token truncation": ("--config.correction.level=token", "--config.correction.cap=2.0"),
    "sequence truncation": ("--config.correction.level=sequence", "--config.correction.cap=2.0"),
    "DVP on both sides": (PRUNED,),
    "DVP in the sampler": (PRUNED, "--config.vocabulary.side=sampler"),
}
PAIRS = (*((name, NOTHING) for name in SAMPLERS),
         *((NOISY, name) for name in CORRECTIONS if name != NOTHING))
HEADER = ("sampler", "correction", "learning rate", "mean abs d", *accuracy.SAMPLED_HEADER)
VERDICT_HEADER = ("sampler", "correction", "mean over the run, difference",
                  "interval, Holm-corrected", "p", "seeds of this sign", "this page alone")


def _group(sampler: str, correction: str, rate: str) -> str:
  name = f"{sampler}_{correction}_{rate}".lower()
  return name.replace("'", "").replace(",", "").replace(" ", "_")


def _cell(sampler: str, correction: str, rate: str, seed: int) -> Cell:
  return Cell(f"{_group(sampler, correction, rate)}_seed{seed}", (
      *BASE, *SAMPLERS[sampler], *CORRECTIONS[correction],
      f"--config.optimizer.learning_rate={rate}", f"--config.seed={seed}"))


def best_rate(results: dict[str, dict], sampler: str, correction: str) -> str | None:
  """Returns the learning rate that the screening chose; None before all have results."""
  return accuracy.best_step(results, {
      rate: f"{_group(sampler, correction, rate)}_seed{SCREENING}" for rate in RATES})


def cells() -> list[Cell]:
  """Returns the screening and then, seed by seed, the pairs whose screening is complete."""
  results = sweep_results.read(HERE)
  screening = [_cell(*pair, rate, SCREENING) for pair in PAIRS for rate in RATES]
  return screening + [_cell(*pair, rate, seed) for seed in SEEDS for pair in PAIRS
                      if (rate := best_rate(results, *pair))]


def measure(run: RunFolder) -> dict:
  """Returns curves, and the mean |log-prob of the trainer - log-prob of the sampler|, nats."""
  return {**accuracy.measure_sampled(run),
          "gap": float(np.mean(run.series("mismatch/absolute")[1]))}


def groups(results: dict[str, dict]) -> dict[tuple[str, str, str], dict[int, dict]]:
  """Returns the runs by (sampler, correction, learning rate) and seed, without the screening."""
  by_group = sweep_results.by_seed(results)
  return {(*pair, rate): seeds for pair in PAIRS if (rate := best_rate(results, *pair))
          and (seeds := {seed: result for seed, result in
                         by_group.get(_group(*pair, rate), {}).items() if seed != SCREENING})}


def verdicts(results: dict[str, dict]) -> list[tuple]:
  """Returns the rows below VERDICT_HEADER: samplers minus the trainer's numerics, corrections minus
  none; paired by seed and warm start, corrected together.
  """
  means = {(sampler, correction): {seed: accuracy.mean_sampled(result["measured"])
                                   for seed, result in seeds.items()}
           for (sampler, correction, _), seeds in groups(results).items()}
  return statistics.comparison_rows(
      means, lambda key: (TRAINERS if key[1] == NOTHING else key[0], NOTHING))


def screening_table(results: dict[str, dict]) -> str:
  """A row for each pair: mean over the run and final accuracy at each learning rate."""
  def text(key: str) -> str:
    if key not in results:
      return tables.MISSING
    measured = results[key]["measured"]
    return f"{accuracy.mean_sampled(measured):.2f}, {measured['sampled'][-1]:.2f}"

  rows = [(*pair, *(text(f"{_group(*pair, rate)}_seed{SCREENING}") for rate in RATES))
          for pair in PAIRS]
  return tables.markdown_table(("sampler", "correction", *RATES), rows)


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  page, rows, curves = folder / "README.md", [], {}
  for key, seeds in groups(results).items():
    records = list(seeds.values())
    measured = [record["measured"] for record in records]
    gap = np.mean([entry["gap"] for entry in measured])
    rows.append((*key, f"{gap:.2g}", *accuracy.sampled_row(records)))
    times = np.array(max((entry["iterations"] for entry in measured), key=len))
    curves[", ".join(key[:2])] = times, accuracy.padded([entry["sampled"] for entry in measured])
  page_parts.replace_part(page, "sweep.py, comparison",
                      page_parts.narrow_tables(HEADER, rows, 2) + sweeps.made_at(results))
  page_parts.replace_part(page, "sweep.py, verdicts",
                      tables.markdown_table(VERDICT_HEADER, verdicts(results)))
  page_parts.replace_part(page, "sweep.py, screening", screening_table(results))
  if curves:
    plots.plot_groups(curves, folder / "training.png", "eval/avg@8")


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
