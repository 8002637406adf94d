"""Which ratio or baseline, where the policy calls a tool several times in a completion?

  python experiments/tools/sweep.py --list
  python experiments/tools/sweep.py --jobs=2      what is missing; again after the screening
  python experiments/tools/sweep.py --seeds=7     two seeds more
  python experiments/tools/sweep.py --render

Methods x steps (learning rates) on the task of recurrence.py. Rollouts are old, and all ratios are
to the policy that sampled. One seed screens the steps; each method's best, by mean sampled accuracy
over the run, has five other seeds, which are cells once the screening has its results. Writes the
tables of README.md and accuracy.png beside this file.
"""

from collections import Counter
from pathlib import Path

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import accuracy, page_parts, plots, statistics, sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.config import TaskConfig, load_plugins
from jaxrl_llm.reporting import tables
from jaxrl_llm.tasks import make_task
from jaxrl_llm.types import Problem

HERE = Path(__file__).parent
CONFIG = "--config=experiments/tools/config.py"
SCREENING, SEEDS = 100, (0, 1, 2, 3, 4)
STEPS = ("1e-4", "3e-4", "1e-3")
REFERENCE = "GRPO"  # what every method is compared with
OTB, UNWEIGHTED = "OTB", "mean reward"
FRESH_OTB, FRESH_UNWEIGHTED = "OTB, fresh", "mean reward, fresh"
FRESH = ("--config.updates.staleness=0",)
# No weight between the policy that sampled and the anchor is left, as they are the same.
PREFIX = ("--config.correction.level=none", "--config.correction.cap=2.0")
# A preset, and what is set beside it; by order of importance. UNWEIGHTED is OTB with the mean
# reward of the group as its baseline. Both, too, on rollouts that are not old.
METHODS = {
    REFERENCE: ("grpo", ()),
    OTB: ("tir_otb", ()),
    "CTPO": ("ctpo", PREFIX),
    "MinPRO": ("minpro", ()),
    "GSPO": ("gspo", ()),
    UNWEIGHTED: ("tir_otb", ("--config.advantage.name=dr_grpo",)),
    FRESH_OTB: ("tir_otb", FRESH),
    FRESH_UNWEIGHTED: ("tir_otb", ("--config.advantage.name=dr_grpo", *FRESH)),
}
HEADER = ("method", "learning rate", *accuracy.SAMPLED_HEADER)
VERDICT_HEADER = ("method", "minus", "mean over the run, difference", "interval, Holm-corrected",
                  "p", "seeds of this sign", "this page alone")
KINDS = ("guess", "needless", "misused", "slip")  # of mistakes
CALLS_HEADER = ("method", "calls, start", "calls, end",
                *(f"{kind}, {when}" for kind in KINDS for when in ("start", "end")))
STARTED = 0.1  # sampled accuracy below which a warm start has not learnt the task


def key_of(name: str, step: str, seed: int) -> str:
  """Returns the name of a run."""
  return f"{name.replace(',', '').replace(' ', '-')}_{step}_seed{seed}"


def cell(name: str, step: str, seed: int) -> Cell:
  preset, flags = METHODS[name]
  return Cell(key_of(name, step, seed), (
      f"{CONFIG}:{preset}", *flags, f"--config.optimizer.learning_rate={step}",
      f"--config.seed={seed}"))


def cells() -> list[Cell]:
  """Returns the screening, and the seeds of each method whose screening is complete."""
  results = sweep_results.read(HERE)
  screening = [cell(name, step, SCREENING) for name in METHODS for step in STEPS]
  return screening + [cell(name, step, seed) for seed in SEEDS for name in METHODS
                      if (step := best_step(results, name))]


def best_step(results: dict[str, dict], name: str) -> str | None:
  return accuracy.best_step(results, {step: key_of(name, step, SCREENING) for step in STEPS})


def measure(run: RunFolder) -> dict:
  """Returns accuracies, and calls and mistakes per completion of the first and the last rollouts
  that were kept.
  """
  iterations = run.rollout_iterations()
  return accuracy.measure_sampled(run) | {
      when: of_rows([(row["prompt"], row["completion"]) for row in run.rollouts(iteration)])
      for when, iteration in (("first", iterations[0]), ("last", iterations[-1]))}


def of_rows(texts: list[tuple[str, str]]) -> dict[str, float]:
  """Returns calls and mistakes of each kind per completion, of (prompt, the policy's text)."""
  load_plugins((str(HERE / "recurrence.py"),))
  task = make_task(TaskConfig("tool_recurrence"), 0, 1)
  counts = Counter(mistake.kind for prompt, completion in texts
                   for mistake in task.mistakes(Problem(prompt, ""), completion))
  counts["calls"] = sum(completion.count("?") for _, completion in texts)
  return {kind: round(counts[kind] / len(texts), 4) for kind in ("calls", *KINDS, "other")}


def compared(results: dict[str, dict]) -> dict[tuple[str, str], dict[int, dict]]:
  """Returns the results by (method, step) and seed, at the step that the screening chose, without
  seeds whose warm start has not learnt the task: it is the same for all methods.
  """
  groups = sweep_results.by_seed(results)
  chosen = {(name, step): groups[sweep_results.group(key_of(name, step, SCREENING))]
            for name in METHODS if (step := best_step(results, name))}
  out = {key: {seed: result for seed, result in seeds.items()
               if seed != SCREENING and result["measured"]["sampled"][0] >= STARTED}
         for key, seeds in chosen.items()}
  return {key: seeds for key, seeds in out.items() if seeds}


def verdicts(results: dict[str, dict]) -> list[tuple]:
  """Returns the rows below VERDICT_HEADER: accuracy's differences to REFERENCE, of OTB to its own
  form without weights, on old and on fresh rollouts, and of CTPO to GSPO; paired by seed and warm
  start, corrected together.
  """
  by_name = {name: {seed: accuracy.mean_sampled(result["measured"])
                    for seed, result in seeds.items()}
             for (name, _), seeds in compared(results).items()}
  fresh = {name: by_name.pop(name) for name in (FRESH_OTB, FRESH_UNWEIGHTED) if name in by_name}
  means = {(name, REFERENCE): seeds for name, seeds in by_name.items()}
  if {(OTB, REFERENCE), (UNWEIGHTED, REFERENCE)} <= means.keys():
    means[OTB, UNWEIGHTED] = means[OTB, REFERENCE]
  if ("CTPO", REFERENCE) in means:  # arXiv 2605.07331's claim
    means["CTPO", "GSPO"] = means["CTPO", REFERENCE]
  means |= {(name, FRESH_UNWEIGHTED): seeds for name, seeds in fresh.items()}
  return statistics.comparison_rows(means, lambda key: (
      key[1], key[1] if key[1] == FRESH_UNWEIGHTED else REFERENCE))


def screened(results: dict[str, dict]) -> list[tuple]:
  """Returns a row for each method: mean over the run and final accuracy at each step."""
  return [(name, *(accuracy.screening_cell(results.get(key_of(name, step, SCREENING)))
                   for step in STEPS))
          for name in METHODS]


def calls_row(records: list[dict]) -> tuple[str, ...]:
  """Returns the cells below CALLS_HEADER: means over seeds."""
  return tuple(
      f"{sum(record['measured'][when][kind] for record in records) / len(records):.2f}"
      for kind in ("calls", *KINDS) for when in ("first", "last"))


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  page, groups = folder / "README.md", compared(results)
  page_parts.replace_part(page, "sweep.py, comparison", page_parts.narrow_tables(
      HEADER, [(*key, *accuracy.sampled_row(list(seeds.values())))
               for key, seeds in groups.items()]) + sweeps.made_at(results))
  page_parts.replace_part(page, "sweep.py, verdicts",
                      tables.markdown_table(VERDICT_HEADER, verdicts(results)))
  page_parts.replace_part(page, "sweep.py, calls", page_parts.narrow_tables(
      CALLS_HEADER, [(name, *calls_row(list(seeds.values())))
                     for (name, _), seeds in groups.items()]))
  page_parts.replace_part(page, "sweep.py, screening",
                      tables.markdown_table(("method", *STEPS), screened(results)))
  shown: dict[str, dict] = {"sampled": {}, "greedy": {}}
  for (name, _), seeds in groups.items():
    measured = [result["measured"] for result in seeds.values()]
    for kind, lines in shown.items():
      lines[name] = (accuracy.longest(measured, "iterations"),
                     accuracy.padded([entry[kind] for entry in measured]))
  if groups:
    plots.plot_panels(shown, folder / "accuracy.png", "held-out accuracy")


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
