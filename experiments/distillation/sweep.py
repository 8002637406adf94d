"""Does a small policy learn in fewer tokens from a trained one than by reward?

  python experiments/main.py --config=configs/quickstart.py --workdir=runs/teacher
  python experiments/export.py --workdir=runs/teacher --out=runs/teacher_exported
  python experiments/distillation/sweep.py --jobs=2     again after the screening
  python experiments/distillation/sweep.py --render

The first two commands make the teacher. The student is the quickstart's policy at half the width.
One seed screens the steps (learning rates) of each source of credit; the best, by mean sampled
accuracy, has three other seeds. Writes the tables of README.md.
"""

from pathlib import Path

import numpy as np

from jaxrl_llm.lab import accuracy, statistics, sweep_results, sweeps
from jaxrl_llm.lab.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables
from jaxrl_llm.reporting.reader import RunFolder

HERE = Path(__file__).parent
TEACHER = "runs/teacher_exported"
STUDENT = ("--config=configs/quickstart.py", "--config.model.width=32",
           "--config.model.head_dim=16", "--config.model.mlp_width=96",
           "--config.task.heldout_problems=64")
SCREENING, SEEDS, STEPS = 100, (0, 1, 2), ("3e-4", "1e-3")
REWARD, TAUGHT = "reward", "teacher"
SOURCES = {
    REWARD: (),
    TAUGHT: ("--config.advantage.name=reverse_kl", "--config.aggregation.name=token",
             f"--config.teacher.pretrained={TEACHER}"),
}
GOAL = 0.8  # sampled accuracy whose tokens are compared
HEADER = ("credit from", "step", "n", f"thousand tokens to {GOAL}", "mean over the run",
          "at the start", "at the end", "commit")
VERDICT_HEADER = ("mean over the run", "interval", "p", "n", "this page alone")


def cell(source: str, step: str, seed: int) -> Cell:
  return Cell(f"{source}_{step}_seed{seed}",
              (*STUDENT, *SOURCES[source], f"--config.optimizer.learning_rate={step}",
               f"--config.seed={seed}"))


def cells() -> list[Cell]:
  """The screening, and then the seeds of each source whose screening is complete."""
  results = sweep_results.read(HERE)
  out = [cell(source, step, SCREENING) for source in SOURCES for step in STEPS]
  chosen = {source: best_step(results, source) for source in SOURCES}
  return out + [cell(source, step, seed) for seed in SEEDS for source, step in chosen.items()
                if step]


def best_step(results: dict[str, dict], source: str) -> str | None:
  """Returns the step with the highest mean on the screening's seed; None before all are there."""
  names = {step: cell(source, step, SCREENING).name for step in STEPS}
  if not results.keys() >= set(names.values()):
    return None
  return max(STEPS, key=lambda step: accuracy.mean_sampled(results[names[step]]["measured"]))


def measure(run: RunFolder) -> dict:
  """Returns sampled accuracy by iteration, and the tokens that were sampled until then."""
  iterations, sampled = run.series(accuracy.SAMPLED)
  times, tokens = run.series("rollout/tokens")
  until = [float(np.sum(tokens[times <= iteration])) for iteration in iterations]
  return {"iterations": iterations.tolist(), "sampled": sampled.round(5).tolist(),
          "tokens": until}


def tokens_to_goal(measured: dict) -> float:
  """Returns the tokens sampled before the first evaluation at GOAL or above; infinite if none is.
  """
  reached = [tokens for tokens, value in zip(measured["tokens"], measured["sampled"], strict=True)
             if value >= GOAL]
  return reached[0] if reached else float(np.inf)


def rows(results: dict[str, dict]) -> list[tuple]:
  """Returns the rows below HEADER; those of the screening are groups of one."""
  groups: dict[tuple[str, str], list[dict]] = {}
  for name, record in results.items():
    source, step, seed = name.split("_")
    kind = step if seed != f"seed{SCREENING}" else f"{step}, screening"
    groups.setdefault((source, kind), []).append(record)
  out = []
  for (source, step), records in sorted(groups.items(), key=lambda pair: "screening" in pair[0][1]):
    measured = [record["measured"] for record in records]
    goal = [tokens_to_goal(entry) / 1e3 for entry in measured]
    short = ", ".join(f"{value:.0f}" if np.isfinite(value) else "never" for value in goal)
    ends = [np.mean([entry["sampled"][place] for entry in measured]) for place in (0, -1)]
    commits = dict.fromkeys(sweep_results.short_commit(record)[:7] for record in records)
    out.append((source, step, len(records), short,
                f"{np.mean([accuracy.mean_sampled(entry) for entry in measured]):.3f}",
                *(f"{value:.3f}" for value in ends), ", ".join(commits)))
  return out


def verdict(results: dict[str, dict]) -> list[tuple]:
  """Returns the row below VERDICT_HEADER: teacher less reward, paired by seed; none before two
  seeds of both are there.
  """
  means: dict[str, dict[int, float]] = {source: {} for source in SOURCES}
  for name, record in results.items():
    source, _, seed = name.split("_")
    if seed != f"seed{SCREENING}":
      means[source][record["seed"]] = accuracy.mean_sampled(record["measured"])
  paired = statistics.paired(means[TAUGHT], means[REWARD])
  if len(paired) < 2:
    return []
  d = statistics.compare({"": paired})[""]
  words = {1: "above", 0: "not told apart", -1: "below"}
  return [(f"{d.mean:+.3f}", f"{d.low:+.3f} to {d.high:+.3f}", f"{d.p:.4f}", d.count,
           words[d.sign])]


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md."""
  page = folder / "README.md"
  tables.replace_part(page, "sweep.py, comparison", tables.markdown_table(HEADER, rows(results))
                      + sweeps.made_at(results))
  tables.replace_part(page, "sweep.py, verdict",
                      tables.markdown_table(VERDICT_HEADER, verdict(results)))


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
