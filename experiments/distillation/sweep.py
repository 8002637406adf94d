"""Does a policy learn in fewer tokens from a trained one than by reward?

  python experiments/distillation/sweep.py --only=^teacher_
  python experiments/export.py --workdir=runs/distillation/teacher_seed50-<hash> \
    --checkpoint=best --out=runs/distillation_teacher
  python experiments/distillation/sweep.py --jobs=2
  python experiments/distillation/sweep.py --seeds=9        two seeds more
  python experiments/distillation/sweep.py --render

The first two commands make the teacher, a run by reward of the same task and network. Then sources
of credit x seeds on the task of configs/offpolicy.py, at its step. Writes the tables of README.md
and accuracy.png beside this file.
"""

from pathlib import Path

import numpy as np

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import accuracy, page_parts, plots, statistics, sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
CHECKPOINT = "runs/distillation_teacher"
TEACHER_SEED, SEEDS = 50, (0, 1, 2, 3, 4, 5, 6)
BASE = ("--config=configs/offpolicy.py:grpo", "--config.updates.staleness=0",
        "--config.updates.anchor=behavior", "--config.task.heldout_problems=64",
        "--config.evaluation.every=2")
TEACHER = Cell(f"teacher_seed{TEACHER_SEED}",
               (*BASE, "--config.iterations=100", "--config.optimizer.learning_rate=3e-4",
                "--config.checkpoint.best=eval/avg@8", f"--config.seed={TEACHER_SEED}"))
TAUGHT = (f"--config.teacher.pretrained={CHECKPOINT}", "--config.advantage.name=reverse_kl")
REWARD = "reward"
SOURCES = {
    REWARD: (),
    "teacher, advantage": TAUGHT,
    "teacher, loss term": (*TAUGHT, "--config.advantage.coef=0", "--config.term.name=distill"),
}
HEADER = ("credit from", *accuracy.SAMPLED_HEADER[:6], "commit")
GOALS = (0.8, accuracy.LEARNT)  # sampled accuracies whose tokens are compared
TOKENS_HEADER = ("credit from", "sampled accuracy", "n", "seeds that reach it",
                 "thousand tokens until then, by seed", "times the tokens, by reward")
VERDICT_HEADER = ("credit from", f"mean over the run, minus {REWARD}", "interval, Holm-corrected",
                  "p", "seeds of this sign", "this page alone")


def cell(source: str, seed: int) -> Cell:
  """Returns a student's run."""
  key = source.replace(", ", "-").replace(" ", "-")
  return Cell(f"{key}_seed{seed}",
              (*BASE, "--config.iterations=20", *SOURCES[source], f"--config.seed={seed}"))


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has whole seeds."""
  return [TEACHER, *(cell(source, seed) for seed in SEEDS for source in SOURCES)]


def measure(run: RunFolder) -> dict:
  """Returns accuracies, and the tokens that were sampled until each of them."""
  return accuracy.measure_sampled(run) | {"tokens": accuracy.with_tokens(run)["tokens"]}


def groups(results: dict[str, dict]) -> dict[str, dict[int, dict]]:
  """Returns the students' results by source and seed, in the order of SOURCES."""
  by_seed = sweep_results.by_seed(results)
  named = {source: by_seed.get(sweep_results.group(cell(source, 0).name), {}) for source in SOURCES}
  return {source: seeds for source, seeds in named.items() if seeds}


def tokens_until(record: dict, goal: float) -> float:
  """Returns the tokens sampled before the first evaluation at `goal` or above, in thousands;
  infinite if there is none.
  """
  measured = record["measured"]
  reached = [tokens for tokens, value in zip(measured["tokens"], measured["sampled"], strict=True)
             if value >= goal]
  return reached[0] / 1e3 if reached else float(np.inf)


def token_rows(by_group: dict[str, dict[int, dict]]) -> list[tuple]:
  """Returns the rows below TOKENS_HEADER; the last cell divides medians over the seeds of both."""
  rows = []
  for goal in GOALS:
    until = {source: {seed: tokens_until(record, goal) for seed, record in seeds.items()}
             for source, seeds in by_group.items()}
    reward = until.get(REWARD, {})
    for source, seeds in until.items():
      shared = sorted(seeds.keys() & reward.keys())
      middle, other = (np.median([x[seed] for seed in shared]) if shared else np.inf
                       for x in (seeds, reward))
      known = np.isfinite(middle) and np.isfinite(other)
      rows.append((source, goal, len(seeds), sum(map(np.isfinite, seeds.values())),
                   ", ".join(f"{value:.0f}" if np.isfinite(value) else "never"
                             for _, value in sorted(seeds.items())),
                   f"{other / middle:.2f}" if known else tables.MISSING))
  return rows


def verdicts(by_group: dict[str, dict[int, dict]]) -> list[tuple]:
  """Returns the rows below VERDICT_HEADER: each source less the reward, paired by seed and warm
  start, corrected together.
  """
  means = {(source,): {seed: accuracy.mean_sampled(x["measured"]) for seed, x in seeds.items()}
           for source, seeds in by_group.items()}
  return statistics.comparison_rows(means, lambda key: (REWARD,))


def teacher_sentence(results: dict[str, dict]) -> str:
  """Returns a sentence on the teacher's run."""
  record = results.get(TEACHER.name)
  if record is None:
    return "\nThe teacher's run is missing.\n"
  measured = record["measured"]
  best = int(np.argmax(measured["sampled"]))
  return (f"\nThe teacher's sampled accuracy is {measured['sampled'][best]:.2f}, after "
          f"{measured['tokens'][best] / 1e3:.0f} thousand tokens of its own; its warm start had "
          f"{measured['sampled'][0]:.2f}.\n")


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, and the figure."""
  page, by_group = folder / "README.md", groups(results)
  rows = [(source, *cells_of[:6], cells_of[-1]) for source, seeds in by_group.items()
          if (cells_of := accuracy.sampled_row(list(seeds.values())))]
  progress = f"\n{len(results)} of {len(cells())} runs are there."
  page_parts.replace_part(page, "sweep.py, comparison", tables.markdown_table(HEADER, rows)
                      + teacher_sentence(results) + progress + sweeps.made_at(results))
  page_parts.replace_part(page, "sweep.py, tokens",
                      tables.markdown_table(TOKENS_HEADER, token_rows(by_group)))
  page_parts.replace_part(page, "sweep.py, verdicts",
                      tables.markdown_table(VERDICT_HEADER, verdicts(by_group)))
  shown = {}
  for source, seeds in by_group.items():
    measured = [record["measured"] for record in seeds.values()]
    tokens = np.mean(accuracy.padded([entry["tokens"] for entry in measured]), 0) / 1e3
    shown[source] = {kind: (tokens, accuracy.padded([entry[kind] for entry in measured]))
                     for kind in ("sampled", "greedy")}
  if shown:
    plots.plot_panels(shown, folder / "accuracy.png", "accuracy", "thousand tokens sampled")


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
