"""The command of a measurement that writes a part of this folder's page."""

import argparse
import json
from collections.abc import Callable
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
  flags = parser.parse_args()
  cache.keep_programs()
  results = HERE / f"{name}.json"
  if flags.workdir is not None:
    results.write_text(json.dumps(measure(flags.workdir, flags.batches), indent=1) + "\n")
  measured = json.loads(results.read_text())
  replace_part(HERE / "README.md", f"experiments/smollm2/{name}.py", text(measured))
  if draw is not None:
    draw(measured, HERE / f"{name}.png")
