"""Does a task have one decision, or many? Measured on a finished run.

  python experiments/main.py --config=configs/quickstart.py --workdir=runs/quickstart
  python experiments/decisions/run.py --workdir=runs/quickstart --name='recurrence, 32 tokens'
  python experiments/decisions/run.py --render

What is measured: experiments/tables_lib/decisions.py. The start is the run's warm start, the end
its last checkpoint. Adds a line to results.jsonl, in place of one of the same name, and writes the
tables of README.md.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from experiments.commands import saved
from experiments.report.run_folder import RunFolder, read_run
from experiments.tables_lib import decisions
from experiments.tables_lib.decisions import Case, Rules
from experiments.tables_lib.mistakes import mistakes_of
from experiments.tables_lib.page_parts import narrow_tables, replace_part
from jaxrl_llm.reporting.tables import MISSING
from jaxrl_llm.reporting.writers import write_atomically
from jaxrl_llm.types import Problem
from jaxrl_llm.wiring import warm_start

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
POLICY_HEADER = ("task", "right, sampled: start", "end", "share of mistakes in the fullest eighth",
                 "share of the gain in the fullest eighth", "best token at one place",
                 "best token everywhere", "best forbidden token", "switch")
SHOWN = 6  # iterations whose kinds of mistakes are shown


def measure(workdir: Path, count: int) -> dict:
  """Returns what JSON can hold of a run: decisions.py on `count` held-out problems."""
  cfg, task, learner = saved.build_learner(workdir)
  rules = Rules(cfg.rollout.max_new_tokens, cfg.rollout.min_new_tokens, tuple(task.stop_ids),
                task.tokenizer.pad_token_id)
  case = Case(task, learner.model, rules, cfg.rollout.max_prompt_tokens)
  start = learner.merged(warm_start.warm_start(cfg, learner, task.tokenizer, workdir))
  iteration = saved.choose(workdir)
  problems, key = task.heldout(count), jax.random.key(cfg.seed)
  run = read_run(workdir)
  last = run.rollout_iterations()[-1]
  before = decisions.by_eighth(_mistakes(task, run, 1))
  return {
      "commit": run.environment.get("git_commit"), "seed": cfg.seed, "iterations": iteration,
      "problems": count, "parameters": sum(leaf.size for leaf in jax.tree.leaves(start)),
      "seconds": float(np.sum(run.series("time/iteration")[1])),
      "sampled": _rounded(run.series("reward/correct")[1]),
      "greedy": _rounded(run.series("eval/accuracy")[1]),
      "mistakes": _rounded(before),
      "gain": _rounded(before - decisions.by_eighth(_mistakes(task, run, last))),
      "kinds": {str(iteration): decisions.by_kind([entries for entries, _ in
                                                   _mistakes(task, run, iteration)])
                for iteration in _shown(run)},
  } | (_interventions(case, start, problems, key) if count else {})


def _interventions(case: Case, start, problems: list[Problem], key) -> dict:
  """Returns how often completions are right with a token forced or forbidden."""
  chosen = decisions.interventions(case, start, problems, key)
  place, token = np.unravel_index(np.argmax(chosen["forced"]), chosen["forced"].shape)
  name = case.task.tokenizer.convert_ids_to_tokens
  return {
      "free": float(chosen["free"]),
      "forced": float(chosen["forced"].max()), "forced_token": name(int(token)),
      "forced_place": int(place) + 1, "everywhere": float(chosen["everywhere"].max()),
      "forbidden": float(chosen["forbidden"].max()),
      "forbidden_token": name(int(np.argmax(chosen["forbidden"]))),
      "switch": decisions.is_switch(chosen),
  }


def _rounded(values) -> list[float]:
  return np.asarray(values, float).round(4).tolist()


def _shown(run: RunFolder) -> list[int]:
  """Returns iterations with rollouts, from the first to the last, the early ones closer."""
  saved_ones = run.rollout_iterations()
  places = np.unique((np.linspace(0, 1, SHOWN)**2 * (len(saved_ones) - 1)).round().astype(int))
  return [saved_ones[place] for place in places]


def _mistakes(task, run: RunFolder, iteration: int) -> list[tuple]:
  """Returns (mistakes, characters) of each completion of an iteration's rollouts."""
  return [(mistakes_of(task, Problem(row["prompt"], ""), row["completion"]),
           len(row["completion"])) for row in run.rollouts(iteration)]


def policy_row(name: str, measured: dict) -> tuple:
  """Returns the cells below POLICY_HEADER; an eighth's share is that of all eighths."""
  shares = [np.max(values) / np.sum(values) for values in
            (measured["mistakes"], np.maximum(measured["gain"], 0))]
  first = (name, f"{measured['sampled'][0]:.2f}", f"{measured['sampled'][-1]:.2f}",
           *(f"{share:.2f}" for share in shares))
  if "forced" not in measured:
    return (*first, *[MISSING] * (len(POLICY_HEADER) - len(first)))
  token = measured["forced_token"]
  return (*first,
          f"{measured['forced']:.2f} (`{token}` at {measured['forced_place']})",
          f"{measured['everywhere']:.2f}",
          f"{measured['forbidden']:.2f} (`{measured['forbidden_token']}`)",
          "yes" if measured["switch"] else "no")


def kind_rows(name: str, measured: dict) -> list[tuple]:
  """Returns a row for each kind of mistake: how many a completion has, by iteration."""
  kinds = sorted({kind for counts in measured["kinds"].values() for kind in counts})
  return [(name, kind, *(f"{it}: {counts.get(kind, 0):.2f}"
                         for it, counts in measured["kinds"].items()),
           *[MISSING] * (SHOWN - len(measured["kinds"]))) for kind in kinds]


def render() -> None:
  """Writes the tables of README.md."""
  results = _read()
  eighths = tuple(f"{i} of 8" for i in range(1, decisions.EIGHTHS + 1))
  shares = [(name, quantity, *(f"{value:.2f}" for value in measured[quantity]))
            for name, measured in results.items() for quantity in ("mistakes", "gain")]
  kinds = [row for name, measured in results.items() for row in kind_rows(name, measured)]
  curve = [(name, measured["parameters"], f"{measured['seconds']:.0f}",
            " ".join(f"{value:.2f}" for value in measured["sampled"][::5]),
            " ".join(f"{value:.2f}" for value in measured["greedy"])) for name, measured in
           results.items()]
  tables = (
      narrow_tables(POLICY_HEADER, [policy_row(*entry) for entry in results.items()]),
      narrow_tables(("task", "mistakes of a completion", *eighths), shares, 2),
      narrow_tables(("task", "mistakes in a completion", *["iteration: mean"] * SHOWN), kinds, 2),
      narrow_tables(("task", "parameters", "RL, seconds", "sampled, every 5 iterations",
                     "greedy at each evaluation"), curve))
  replace_part(HERE / "README.md", "run.py", "\n".join(tables))


def _read() -> dict[str, dict]:
  lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
  return {line.pop("name"): line for line in map(json.loads, lines)}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--workdir", type=Path, help="folder of a run, fresh rollouts")
  parser.add_argument("--name", help="of the line in results.jsonl")
  parser.add_argument("--problems", type=int, default=128,
                      help="held-out problems of interventions; 0: none of these")
  parser.add_argument("--render", action="store_true", help="only write the tables again")
  flags = parser.parse_args()
  if not flags.render:
    if not (flags.workdir and flags.name):
      parser.error("--workdir and --name are needed, or --render")
    results = _read() | {flags.name: measure(flags.workdir, flags.problems)}
    lines = [json.dumps({"name": name, **measured}) for name, measured in results.items()]
    write_atomically(RESULTS, "\n".join(lines) + "\n")
  render()


if __name__ == "__main__":
  main()
