"""Do number tokens help a small model to compare decimals and to add?

  python experiments/papers/number_tokens/sweep.py --list
  python experiments/papers/number_tokens/sweep.py --jobs=2
  python experiments/papers/number_tokens/sweep.py --render

Characters against the two variants of arXiv 2604.11582, with equal updates and parameters. Writes
the tables of README.md beside this file.
"""

from pathlib import Path

import numpy as np

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import page_parts, sweeps
from experiments.tables_lib.compare import interval
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
TOKENS = ("characters", "marker", "vocabulary")
# As in task.py; the first and the last trained length, and those asked.
OPERATIONS = {"compare": ((1, 3), range(1, 7)), "add": ((4, 6), range(2, 9))}
TITLES = {
    "compare": "Comparing: accuracy, %, by digits of the longer fraction",
    "add": "Adding: accuracy, %, by digits of the operands",
    "digits": "Adding: digits at their place, %, by digits of the operands",
}


def _key(operation: str, tokens: str, seed: int) -> str:
  return f"{operation}_{tokens}_seed{seed}"


def cells() -> list[Cell]:
  """By seed first, so that an early end leaves whole rows."""
  return [Cell(_key(operation, tokens, seed), (
      f"--config=experiments/papers/number_tokens/config.py:{operation},{tokens}",
      f"--config.seed={seed}"))
          for seed in SEEDS for operation in OPERATIONS for tokens in TOKENS]


def measure(run: RunFolder) -> dict:
  """Returns the means of the reward's components on held-out problems, and the run's seconds."""
  last, prefix = run.metrics[-1], "eval/component/"
  return {
      "components": {name.removeprefix(prefix): round(value, 6) for name, value in last.items()
                     if name.startswith(prefix)},
      "seconds": round(last["time/elapsed"], 1),
  }


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md, of the seeds that have results."""
  parts = []
  for name, title in TITLES.items():
    operation = "add" if name == "digits" else name
    trained, asked = OPERATIONS[operation]
    columns = [f"{'digits_' * (name == 'digits')}length_{n}" for n in asked]
    header = [f"**{n}**" if trained[0] <= n <= trained[1] else str(n) for n in asked]
    if name == "compare":
      columns, header = [*columns, "trap"], [*header, "longer is smaller"]
    rows = [row for tokens in TOKENS if (row := _row(results, operation, tokens, columns))]
    parts.append(f"{title} (bold: trained).\n\n"
                 + tables.markdown_table(("tokens", "seeds", *header, "seconds"), rows))
  page_parts.replace_part(folder / "README.md", "sweep.py",
                      "\n".join(parts) + sweeps.made_at(results))


def _row(results: dict[str, dict], operation: str, tokens: str, columns: list[str]) -> tuple:
  """The cells of a line; empty without results."""
  keys = [_key(operation, tokens, seed) for seed in SEEDS]
  runs = [results[key]["measured"] for key in keys if key in results]
  if not runs:
    return ()
  of = lambda values: interval(np.array(values))
  return (tokens, len(runs), *(of([100 * one["components"][name] for one in runs])
                               for name in columns), of([one["seconds"] for one in runs]))


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
