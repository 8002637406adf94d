r"""What runs of the recipes reached and took, and the part of this folder's page about it.

  run=runs/smollm2_0
  python experiments/main.py --config=configs/smollm2_135m.py --workdir=$run --config.seed=0 \
      --config.checkpoint.keep=3
  python experiments/evaluate.py --workdir=$run --checkpoint=0 --plugins=run --temperature=1 \
      --batch=128 --out=$run/start
  python experiments/evaluate.py --workdir=$run --plugins=run --temperature=1 --batch=128 \
      --out=$run/end
  python experiments/smollm2/recipe.py $run

The last command takes any number of runs, adds each to results/ under the name of its folder, and
writes the page from all that are there; without a run it writes the page alone.
"""

import argparse
import json
from pathlib import Path

from experiments.smollm2 import table
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.fields import ConfigError

HERE = Path(__file__).parent
NAME = "experiments/smollm2/recipe.py"
COLUMNS = ("run", "rewards", "iterations", "before", "after", "largest share of a kind",
           "best constant", "minutes", "GiB", "processor")


def record(run: Path) -> dict:
  """Returns what a finished run reached, by kind of question, and what it took.

  Raises:
    ConfigError: the run or its two evaluations are not there.
  """
  if not (run / "metrics.jsonl").is_file():
    raise ConfigError(f"{run}: no metrics.jsonl. Fix: the folder of a run.")
  lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
  config, environment = (json.loads((run / f"{name}.json").read_text())
                         for name in ("config", "environment"))
  start, end = (table.read(str(run / name)) for name in ("start", "end"))
  return {
      "seed": config["seed"],
      "shuffled": config["task"]["shuffle_rewards"],
      "iterations": lines[-1]["iteration"],
      "seconds": lines[-1]["time/elapsed"],
      "peak_gib": max(line["time/peak_memory"] for line in lines if "time/peak_memory" in line),
      "processor": environment["processor"],
      "kinds": table.by_kind(start, end),
  }


def page(records: dict[str, dict]) -> str:
  """Returns Markdown tables of all runs, and of the kinds in each."""
  rows = [f"| {' | '.join(COLUMNS)} |", "|---|---|--:|--:|--:|--:|--:|--:|--:|---|"]
  for name, run in records.items():
    of_all = run["kinds"]["all"]
    shares = [kind["share"] for label, kind in run["kinds"].items() if label != "all"]
    rows.append(
        f"| {name} | {'shuffled' if run['shuffled'] else 'of the answers'} | {run['iterations']} | "
        f"{_pair(of_all, 'before')} | {_pair(of_all, 'after')} | {max(shares):.2f} | "
        f"{of_all['constant']:.2f} | {run['seconds'] / 60:.1f} | {run['peak_gib']:.1f} | "
        f"{run['processor']} |")
  return "\n".join([*rows, "", "By kind, before and after, and of the gain:", "", *_kinds(records)])


def _kinds(records: dict[str, dict]) -> list[str]:
  """Returns the lines of a table with a row for each kind, and a column for each run."""
  runs = {name: run["kinds"] for name, run in records.items()}
  first = next(iter(runs.values()))
  lines = [f"| kind | problems | constant | {' | '.join(runs)} |",
           f"|---|--:|--:|{'---|' * len(runs)}"]
  for kind, row in first.items():
    cells = [f"{of[kind]['before']:.2f} → {of[kind]['after']:.2f}, {of[kind]['share']:.2f}"
             for of in runs.values()]
    lines.append(f"| {kind} | {row['problems']} | {row['constant']:.2f} | {' | '.join(cells)} |")
  return lines


def _pair(kind: dict, when: str) -> str:
  return f"{kind[when]:.3f} ({kind[f'{when}_lenient']:.3f})"


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("runs", nargs="*", type=Path, help="folders of runs, each with start and end")
  try:
    for run in parser.parse_args().runs:
      (HERE / "results").mkdir(exist_ok=True)
      text = json.dumps(record(run), indent=1) + "\n"
      (HERE / "results" / f"{run.name}.json").write_text(text)
    replace_part(HERE / "README.md", NAME, page(records()))
  except ConfigError as error:
    parser.exit(1, f"error: {error}\n")


def records() -> dict[str, dict]:
  """Returns the committed records by the names of their runs."""
  return {path.stem: json.loads(path.read_text())
          for path in sorted((HERE / "results").glob("*.json"))}


if __name__ == "__main__":
  main()
