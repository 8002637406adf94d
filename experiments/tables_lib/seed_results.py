"""The command of an experiment that measures one seed after the other in one process."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxrl_llm.store.files import write_atomically


def load(folder: Path, seeds: Sequence[int]) -> list:
  """Returns what results/seed<n>.json of the folder hold, in the order of the seeds."""
  return [json.loads(_path(folder, seed).read_text()) for seed in seeds]


def main(doc: str, folder: Path, seeds: tuple[int, ...], measure: Callable,
         write_tables: Callable) -> None:
  """Measures the seeds whose file is missing, and writes the tables of the page.

  Args:
    doc: shown by --help.
    folder: of README.md and results/.
    seeds: the seeds that the page reports.
    measure: seed -> what JSON can hold.
    write_tables: (results of all `seeds`, path of the page).
  """
  parser = argparse.ArgumentParser(description=doc,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--render", action="store_true", help="only write the tables again")
  parser.add_argument("--seeds", type=int, nargs="+", help="others than those of the page")
  parser.add_argument("--out", type=Path, help="folder of results; default: beside the page")
  flags = parser.parse_args()
  if flags.seeds and not flags.out:
    parser.error("--seeds without --out: the page reports seeds "
                 f"{', '.join(map(str, seeds))} only. Fix: --out=<a folder of yours>.")
  if flags.render and flags.out:
    parser.error("--render takes no --out")
  for seed in [] if flags.render else flags.seeds or seeds:
    path = _path(flags.out or folder, seed)
    if not path.exists():
      path.parent.mkdir(parents=True, exist_ok=True)
      write_atomically(path, json.dumps(measure(seed), indent=1) + "\n")
      print(path, "written", flush=True)
  if not flags.out:
    write_tables(load(folder, seeds), folder / "README.md")


def _path(folder: Path, seed: int) -> Path:
  return folder / "results" / f"seed{seed}.json"
