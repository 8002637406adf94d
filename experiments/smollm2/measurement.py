"""The command of a measurement that writes a part of this folder's page."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from experiments.commands import cache
from experiments.tables_lib.page_parts import replace_part

HERE = Path(__file__).parent


def main(doc: str, name: str, measure: Callable, text: Callable, batch: str,
         draw: Callable | None = None) -> None:
  """Measures the run of --workdir and stores the figures; without it reads those that are stored.
  Both write the page's part, and a picture if `draw` is there.

  Args:
    doc: shown by --help.
    name: of the command, of <name>.json and of <name>.png in this folder.
    measure: (folder of a run, number of batches) -> what JSON can hold.
    text: what was measured -> Markdown of the page's part.
    batch: what a batch is.
    draw: (what was measured, path of the picture).
  """
  parser = argparse.ArgumentParser(description=doc,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--workdir", type=Path, help="folder of a run with its checkpoints")
  parser.add_argument("--batches", type=int, default=4, help=f"of {batch} (default 4)")
  add_out(parser)
  flags = parser.parse_args()
  cache.keep_programs()
  if flags.workdir is not None:
    store(measure(flags.workdir, flags.batches), name, flags.out)
  write(name, text, draw, flags.out)


def add_out(parser: argparse.ArgumentParser) -> None:
  """Adds --out, the folder of everything that a measurement writes."""
  parser.add_argument("--out", type=Path, default=HERE, help="another folder for figures, tables "
                      "and picture; what differs from the committed figures is printed")


def store(measured: dict, name: str, folder: Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  (folder / f"{name}.json").write_text(json.dumps(measured, indent=1) + "\n")


def write(name: str, text: Callable, draw: Callable | None, folder: Path) -> None:
  """Writes the stored figures as tables and picture: the page's part, or <name>.md in another
  folder than this one, and then prints how the figures differ from the committed ones.
  """
  measured = json.loads((folder / f"{name}.json").read_text())
  if folder.resolve() == HERE:
    replace_part(HERE / "README.md", f"experiments/smollm2/{name}.py", text(measured))
  else:
    (folder / f"{name}.md").write_text(f"{text(measured)}\n")
    print(differences(json.loads((HERE / f"{name}.json").read_text()), measured))
  if draw is not None:
    draw(measured, folder / f"{name}.png")


def differences(committed: dict, measured: dict, most: int = 10) -> str:
  """Returns how many numbers of both are equal, and the others: the `most` of the largest relative
  difference, that of numbers below 1e-6 being to 1e-6, and all that only one of them has.
  """
  here, there = (dict(_numbers(tree)) for tree in (measured, committed))
  shared = [key for key in there if key in here]
  gaps = {key: abs(here[key] - there[key]) / max(abs(there[key]), 1e-6) for key in shared
          if here[key] != there[key]}
  lines = [f"{len(shared) - len(gaps)} of {len(there)} committed numbers are equal."]
  lines += [f"{key}: {there[key]:.6g} committed, {here[key]:.6g} here"
            for key in sorted(gaps, key=gaps.get, reverse=True)[:most]]
  for where, alone in (("committed", there.keys() - here.keys()),
                       ("here", here.keys() - there.keys())):
    lines += [f"only {where}: {len(alone)}, as {min(alone)}"] if alone else []
  return "\n".join(lines)


def _numbers(tree, path: str = "") -> Iterator[tuple[str, float]]:
  """Yields each number of what JSON holds, by its keys."""
  if isinstance(tree, dict | list):
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
      yield from _numbers(value, f"{path}/{key}" if path else str(key))
  elif isinstance(tree, int | float):
    yield path, float(tree)
