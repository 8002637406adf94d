"""Which weighting of tokens, where longer completions go wrong more often?

  python experiments/aggregation/sweep.py --list
  python experiments/aggregation/sweep.py --jobs=2    what is missing; again after the screening
  python experiments/aggregation/sweep.py --seeds=7   two seeds more
  python experiments/aggregation/sweep.py --render

Aggregations x steps (learning rates) on the task of task.py. One seed screens the steps; each
aggregation's best, by mean sampled accuracy over the run, has five other seeds, which are cells
once the screening has its results. Writes the tables of README.md, accuracy.png and length.png
beside this file.
"""

from pathlib import Path

import numpy as np

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import accuracy, page_parts, plots, statistics, sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables
from jaxrl_llm.tasks.recurrence import VALUES

HERE = Path(__file__).parent
SCREENING, SEEDS = 100, (0, 1, 2, 3, 4)
STEPS = ("1e-4", "3e-4", "1e-3")
AGGREGATIONS = ("token", "sequence", "fixed", "balanced")
REFERENCE = "token"  # what every aggregation is compared with
LAG = 4  # values of a prompt
HEADER = ("aggregation", "learning rate", *accuracy.SAMPLED_HEADER)
LENGTH_HEADER = ("aggregation", "tokens at the start", "right", "wrong",
                 "correlation of length and right", "tokens at the end", "right, end", "wrong, end",
                 "wrong steps per 100 values, start", "wrong steps, end")
DIFFERENCE = ("difference", "interval, Holm-corrected", "p", "seeds of this sign",
              "this page alone")
VERDICT_HEADER = (f"minus {REFERENCE}", f"mean over the run, {DIFFERENCE[0]}", *DIFFERENCE[1:])
FURTHER_HEADER = (f"minus {REFERENCE}", "measure", *DIFFERENCE)
FURTHER = {"tokens at the end": "length", "wrong steps per 100 values, end": "wrong_steps"}
STARTED = 0.1  # sampled accuracy below which a warm start has not learnt the task



def cell(name: str, step: str, seed: int) -> Cell:
  return Cell(f"{name}_{step}_seed{seed}", (
      "--config=experiments/aggregation/config.py", f"--config.aggregation.name={name}",
      f"--config.optimizer.learning_rate={step}", f"--config.seed={seed}"))


def cells() -> list[Cell]:
  """Returns the screening, and the seeds of each aggregation whose screening is complete."""
  results = sweep_results.read(HERE)
  screening = [cell(name, step, SCREENING) for step in STEPS for name in AGGREGATIONS]
  return screening + [cell(name, step, seed) for seed in SEEDS for name in AGGREGATIONS
                      if (step := best_step(results, name))]


def best_step(results: dict[str, dict], name: str) -> str | None:
  return accuracy.best_step(results, {step: cell(name, step, SCREENING).name for step in STEPS})


def measure(run: RunFolder) -> dict:
  """Returns accuracies, the lengths of the rows that were sampled, by iteration, and what the first
  and the last iteration that was kept sampled.
  """
  kept = run.rollout_iterations()
  return accuracy.measure_sampled(run) | {
      "lengths": run.series("rollout/length")[1].round(3).tolist(),
      "first": of_rows(run.rollouts(kept[0])), "last": of_rows(run.rollouts(kept[-1]))}


def of_rows(rows: list[dict]) -> dict[str, float | None]:
  """Returns the mean length of rows, in tokens, of right and of wrong ones; the correlation of
  length and being right; and the wrong steps per 100 values.
  """
  lengths = np.array([len(row["tokens"]) - row["prompt_length"] for row in rows], float)
  right = np.array([row["correct"] for row in rows], bool)
  spread = lengths.std() > 0 and right.std() > 0
  return {"length": _mean(lengths), "right": _mean(lengths[right]), "wrong": _mean(lengths[~right]),
          "correlation": float(np.corrcoef(lengths, right)[0, 1]) if spread else None,
          "wrong_steps": wrong_steps([(row["prompt"], row["completion"]) for row in rows])}


def _mean(values: np.ndarray) -> float | None:
  return round(float(values.mean()), 4) if len(values) else None


def wrong_steps(texts: list[tuple[str, str]]) -> float:
  """Returns the steps that do not follow from the values before them, per 100 values, of (prompt,
  completion). Unlike accuracy, it does not fall with the length.
  """
  wrong = [VALUES.get(text[at]) != (VALUES.get(text[at - 1], 0)
                                    + VALUES.get(text[at - LAG], 0)) % 10
           for prompt, completion in texts for text in [prompt[-LAG:] + completion]
           for at in range(LAG, len(text))]
  return round(100 * float(np.mean(wrong)), 4)


def compared(results: dict[str, dict]) -> dict[tuple[str, str], dict[int, dict]]:
  """Returns what was measured by (aggregation, step) and seed, without the screening's, and without
  seeds whose warm start has not learnt the task: it is the same for all.
  """
  groups = sweep_results.by_seed(results)
  out = {(name, step): {seed: result["measured"]
                        for seed, result in groups.get(f"{name}_{step}", {}).items()
                        if seed != SCREENING and result["measured"]["sampled"][0] >= STARTED}
         for name in AGGREGATIONS
         for step in STEPS}
  return {key: seeds for key, seeds in out.items() if seeds}


def verdicts(results: dict[str, dict]) -> list[tuple]:
  """Returns the rows below VERDICT_HEADER: accuracy's differences to REFERENCE, paired by seed and
  warm start, corrected together.
  """
  means = {(name,): {seed: accuracy.mean_sampled(measured) for seed, measured in seeds.items()}
           for (name, _), seeds in compared(results).items()}
  return statistics.comparison_rows(means, lambda key: (REFERENCE,))


def further_verdicts(results: dict[str, dict]) -> list[tuple]:
  """Returns the rows below FURTHER_HEADER, corrected together and apart from accuracy's."""
  means = {(name, text): {seed: measured["last"][key] for seed, measured in seeds.items()}
           for text, key in FURTHER.items() for (name, _), seeds in compared(results).items()}
  return statistics.comparison_rows(means, lambda key: (REFERENCE, key[1]))


def length_row(measured: list[dict]) -> tuple[str, ...]:
  """Returns the cells below LENGTH_HEADER: means over seeds."""
  def mean(when: str, key: str, digits: int = 1) -> str:
    values = [entry[when][key] for entry in measured if entry[when][key] is not None]
    return f"{np.mean(values):.{digits}f}" if values else tables.MISSING

  kinds = ("length", "right", "wrong")
  return (*(mean("first", kind) for kind in kinds), mean("first", "correlation", 2),
          *(mean("last", kind) for kind in kinds),
          *(mean(when, "wrong_steps", 2) for when in ("first", "last")))


def screened(results: dict[str, dict]) -> list[tuple]:
  """Returns a row for each aggregation: mean over the run and final accuracy at each step."""
  return [(name, *(accuracy.screening_cell(results.get(cell(name, step, SCREENING).name))
                   for step in STEPS))
          for name in AGGREGATIONS]


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figures."""
  page, groups = folder / "README.md", compared(results)
  seeds_of = sweep_results.by_seed(results)
  rows = [(*key, *accuracy.sampled_row([seeds_of["_".join(key)][seed] for seed in seeds]))
          for key, seeds in groups.items()]
  page_parts.replace_part(page, "sweep.py, comparison",
                      page_parts.narrow_tables(HEADER, rows) + sweeps.made_at(results))
  page_parts.replace_part(page, "sweep.py, verdicts",
                      tables.markdown_table(VERDICT_HEADER, verdicts(results)))
  page_parts.replace_part(page, "sweep.py, further verdicts",
                      tables.markdown_table(FURTHER_HEADER, further_verdicts(results)))
  page_parts.replace_part(page, "sweep.py, screening",
                      tables.markdown_table(("aggregation", *STEPS), screened(results)))
  page_parts.replace_part(page, "sweep.py, lengths", page_parts.narrow_tables(
      LENGTH_HEADER, [(name, *length_row(list(seeds.values())))
                      for (name, _), seeds in groups.items()]))
  curves: dict[str, dict] = {"accuracy": {}, "length": {}}
  for (name, _), seeds in groups.items():
    sampled, lengths = (accuracy.padded([entry[key] for entry in seeds.values()])
                        for key in ("sampled", "lengths"))
    times = accuracy.longest(list(seeds.values()), "iterations")
    curves["accuracy"][name] = times, sampled
    curves["length"][name] = 1 + np.arange(lengths.shape[1]), lengths
  for title, lines in curves.items():
    if lines:
      plots.plot_panels({title: lines}, folder / f"{title}.png", title)


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
