"""Draws the atlas of estimators: the weight that each one gives to a token's gradient.

  python experiments/atlas/run.py
  python experiments/atlas/run.py --plugins=experiments/extend/estimator.py --out=runs/atlas
  python experiments/atlas/run.py --names=ppo,ctpo,gspo --out=runs/atlas

The files atlas.png and tables.md go into --out. By default they are the committed ones: atlas.png
beside this file, and the tables of README.md.
"""

import argparse
import sys
from pathlib import Path

from experiments.commands import cache
from experiments.tables_lib.atlas import atlas, atlas_tables
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.config import ConfigError, load_plugins

HERE = Path(__file__).parent


def tables(names: list[str] | None) -> str:
  """Returns the three tables of the page, in the order of the picture."""
  methods = atlas.configs(names)
  order = [label for labels in atlas.families(methods).values() for label in labels]
  facts = {label: atlas_tables.measure(methods[label]) for label in order}
  return "\n\n".join((
      "### What the weight depends on", atlas_tables.reads_table(facts).rstrip(),
      "### Only this token moves", atlas_tables.limit_table(facts, "one token").rstrip(),
      "### Every token of the row moves", atlas_tables.limit_table(facts, "whole row").rstrip()))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, default=HERE,
                      help="folder of the files (default: that of this file)")
  parser.add_argument("--plugins", default="",
                      help="files whose estimators enter, too, separated by commas")
  parser.add_argument("--names", default="",
                      help="estimators to draw, separated by commas (default: all)")
  args = parser.parse_args()
  if (args.plugins or args.names) and args.out.resolve() == HERE.resolve():
    parser.error("--plugins and --names need --out: the committed picture holds all of the "
                 "package's estimators and no others")
  names = [name.strip() for name in args.names.split(",") if name.strip()] or None
  try:
    load_plugins((args.plugins,))
    cache.keep_programs()
    args.out.mkdir(parents=True, exist_ok=True)
    atlas.draw(names, args.out / "atlas.png")
    text = tables(names)
  except ConfigError as error:
    sys.exit(f"error: {error}")
  if args.out.resolve() == HERE.resolve():
    replace_part(HERE / "README.md", "run.py", text + "\n")
  else:
    (args.out / "tables.md").write_text(text + "\n")
  print(f"{text}\n\nwritten: {args.out / 'atlas.png'}")


if __name__ == "__main__":
  main()
