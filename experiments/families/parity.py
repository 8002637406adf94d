"""Writes the table of errors against transformers, of every family of checkpoints.

  python experiments/families/parity.py
  python experiments/families/parity.py --only=gemma3,olmo2_tied

Each row is a tiny random checkpoint that transformers wrote, in f32 on this machine's CPU. Exits
with 1 if an error exceeds the bound. It needs torch: pip install -e '.[test]'.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from experiments.families import checkpoints, comparison
from experiments.tables_lib import page_parts
from jaxrl_llm import config
from jaxrl_llm.models import families
from jaxrl_llm.reporting.tables import markdown_table

HERE = Path(__file__).parent
PLUGIN = HERE.parent / "extend/family.py"
BOUND = 1e-4
GREEDY = 32  # tokens of a continuation
# A checkpoint of each family, for the page.
NAMES = ("llama", "qwen2_tied", "qwen3_untied", "qwen3_moe_mixed", "mistral", "olmo2", "smollm3",
         "gemma3", "olmo3")
PART = "parity.py"
HEADER = ("family", "checkpoint", "logits", "gradient", "transformers' own gradient", "greedy",
          "ragged rows", "export", "LoRA", "packing")


def errors(name: str, folder: Path) -> tuple:
  """Returns the row of a checkpoint, which is written below `folder`: errors, and for `greedy` the
  number of tokens that differ.
  """
  checkpoint = checkpoints.make(name, folder / "checkpoint")
  gradients = comparison.gradient_errors(checkpoint).values()
  gradient, of_transformers = (max(values) for values in zip(*gradients, strict=True))
  kind, _ = (checkpoints.FAMILIES | checkpoints.PLUGIN_FAMILIES)[name]
  return (kind, name, comparison.logits_error(checkpoint), gradient, of_transformers,
          comparison.greedy_mismatches(checkpoint, GREEDY), comparison.decode_error(checkpoint),
          comparison.export_error(checkpoint, folder / "export"),
          comparison.adapters_error(checkpoint, folder / "adapters"),
          comparison.packing_error(checkpoint))


def beyond(row: tuple) -> list[str]:
  """Returns the columns of a row in which ours exceeds the bound.

  A gradient may be as far from the one in f64 as transformers' own in f32 is.
  """
  bounds = {name: BOUND for name in HEADER[2:]} | {
      "gradient": max(BOUND, row[HEADER.index("transformers' own gradient")]),
      "transformers' own gradient": float("inf"), "greedy": 0}
  values = dict(zip(HEADER[2:], row[2:], strict=True))
  return [name for name, value in values.items() if not value <= bounds[name]]


def as_cells(row: tuple) -> tuple[str, ...]:
  """Returns a row as the page shows it."""
  total = GREEDY * len(comparison.PROMPTS)
  return tuple(f"{total - value} of {total}" if name == "greedy"
               else value if isinstance(value, str) else f"{value:.1e}"
               for name, value in zip(HEADER, row, strict=True))


def table(rows: Iterable[tuple]) -> str:
  """Returns the rows as Markdown."""
  return markdown_table(HEADER, [as_cells(row) for row in rows])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--only", default="",
                      help="checkpoints of checkpoints.py, by comma, which are printed alone")
  parser.add_argument("--page", default=str(HERE / "README.md"), help="page to write; empty: none")
  flags = parser.parse_args()
  if "olmo3" not in families.FAMILIES:
    config.load_plugins((str(PLUGIN),))
  names = [*checkpoints.FAMILIES, *checkpoints.PLUGIN_FAMILIES]
  chosen = flags.only.split(",") if flags.only else NAMES
  unknown = sorted(set(chosen) - set(names))
  if unknown:
    parser.error(f"--only={flags.only}: no checkpoint is called {unknown[0]!r}. Allowed are "
                 f"{', '.join(names)}.")
  rows = []
  for name in chosen:
    with tempfile.TemporaryDirectory() as folder:
      rows.append(errors(name, Path(folder)))
    print(*as_cells(rows[-1]), sep="  ", flush=True)
  if flags.page and not flags.only:
    page_parts.replace_part(flags.page, PART, table(rows))
  bad = [f"{row[1]}: {', '.join(beyond(row))}" for row in rows if beyond(row)]
  sys.exit(f"above {BOUND:g}: {'; '.join(bad)}" if bad else 0)


if __name__ == "__main__":
  main()
