"""Workload W in two checkouts of the repository, in turn: is anything slower than it was?

  git worktree add ../before 6e7cf406
  python experiments/bench/checkouts.py --before=../before --rounds=5 -- --micro 16 --reps 3
  python experiments/bench/checkouts.py --render

What stands behind `--` goes to iteration.py of both, a fresh process each. Adds rounds to
results/workload_w.json where both commits are those that it holds, begins it anew otherwise, and
writes the table of README.md. A ratio is that of a round's medians.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.reporting.tables import markdown_table

ROOT = Path(__file__).parents[2]
RESULT = Path(__file__).parent / "results" / "workload_w.json"
PARTS = {"generation": "generation", "ragged_generation": "generation, ragged",
         "scoring": "scoring", "train_step": "train step",
         "iteration": "whole iteration", "ragged_iteration": "whole iteration, ragged"}
HEADER = ("part", "before, s", "now, s", "now over before, median", "range", "rounds")


def commit(checkout: Path) -> str:
  """Returns the commit that is checked out."""
  return subprocess.run(("git", "rev-parse", "--short=8", "HEAD"), cwd=checkout, check=True,
                        text=True, capture_output=True).stdout.strip()


def once(checkout: Path, flags: list[str]) -> dict:
  """Returns the JSON of iteration.py, run in a checkout with its own package."""
  with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "out.json"
    command = [sys.executable, "experiments/bench/iteration.py", *flags, f"--json={out}"]
    subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL,
                   env=os.environ | {"PYTHONPATH": str(checkout)})
    return json.loads(out.read_text())


def table(rounds: list[dict]) -> str:
  """Returns a row for each part, of the rounds that have it.

  Args:
    rounds: for each of `before` and `now` the seconds of all repetitions, by part.
  """
  rows = []
  for part, label in PARTS.items():
    pairs = [[one[side][part] for side in ("before", "now")] for one in rounds
             if part in one["now"]]
    if pairs:
      ratios = [statistics.median(now) / statistics.median(before) for before, now in pairs]
      seconds = [statistics.median(itertools.chain(*side)) for side in zip(*pairs, strict=True)]
      rows.append((label, *(f"{value:.2f}" for value in seconds),
                   f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}",
                   len(pairs)))
  return markdown_table(HEADER, rows)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--before", type=Path, help="the other checkout")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--render", action="store_true", help="only write the table again")
  parser.add_argument("flags", nargs="*", help="of iteration.py, behind --")
  arguments = parser.parse_args()
  result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
  if not arguments.render:
    if arguments.before is None:
      parser.error("--before: the other checkout is needed. Fix: git worktree add ../before COMMIT")
    checkouts = {"before": arguments.before.resolve(), "now": ROOT}
    commits = {side: commit(checkout) for side, checkout in checkouts.items()}
    if result.get("commits") != commits:
      result = {"commits": commits, "rounds": []}
    for _ in range(arguments.rounds):
      done = {side: once(checkout, arguments.flags) for side, checkout in checkouts.items()}
      result |= {key: done["now"][key] for key in ("environment", "shape")}
      result["rounds"].append({side: out["seconds"] for side, out in done.items()})
      RESULT.write_text(json.dumps(result, indent=1) + "\n")
  text = table(result["rounds"])
  replace_part(RESULT.parents[1] / "README.md", "checkouts.py", text)
  print(text)


if __name__ == "__main__":
  main()
