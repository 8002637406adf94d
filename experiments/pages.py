"""Writes the tables of pages that list what the package has, and says which are out of date.

  python experiments/pages.py --check    says what is out of date, and exits with 1 if anything is
  python experiments/pages.py            writes it

Names, defaults, anchors, needs, sources and keys come from the registries, the presets and the
docstrings. Cells that no code says (how a formula is put in a few words, what a recipe changes of
its source) stand in the table itself: they are kept, and a new row begins with the first sentence
of the method's docstring. A method without a section of its own gets its docstring as one.
"""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import matrix

import jaxrl_llm
from experiments.tables_lib import page_parts
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.objective import advantages, estimators
from jaxrl_llm.presets import PRESETS
from jaxrl_llm.registry import ADVANTAGES as ADVANTAGE_ENTRIES
from jaxrl_llm.registry import AGGREGATIONS, Entry
from jaxrl_llm.store.files import write_atomically

HERE = Path(__file__).parent
PACKAGE = Path(jaxrl_llm.__file__).parent
ROOT = HERE.parent
METHODS = PACKAGE / "objective/README.md"
ADVANTAGES = PACKAGE / "objective/advantages.md"
COMMAND = "experiments/pages.py"
UNCOMPARED = "not compared with its source yet"
EMPTY = "-"


class Part(NamedTuple):
  """A part of a page.

  Attributes:
    page: file.
    name: of the part; `markers` says between which two lines it stands.
    text: the part as it is -> as it has to be.
  """

  page: Path
  name: str
  text: Callable[[str], str]


def rows_of(part: str) -> dict[str, list[str]]:
  """Returns the first column without link and backticks -> the other cells of a part's table."""
  return {re.sub(r"\[(.*)\]\(.*\)", r"\1", row[0]).strip("`"): list(row[1:])
          for rendered in page_parts.tables(part) for row in rendered.rows}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  """Returns a table whose columns are not padded, so that a new row changes no other."""
  header = list(header)
  lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
  lines.insert(1, "|" + "---|" * len(header))
  return "\n".join(lines) + "\n"


def linked(name: str, function: Callable, page: Path) -> str:
  """Returns a method's name as a link to the file that registers it."""
  file = ROOT / f"{function.__module__.replace('.', '/')}.py"
  return f"[`{name}`]({os.path.relpath(file, page.parent)})"


def first_sentence(entry: Entry) -> str:
  """Returns the first sentence of a method's docstring, without its full stop."""
  text = " ".join((inspect.getdoc(entry.function) or EMPTY).split("\n\n")[0].split())
  return re.split(r"\.(?: |$)", text)[0]


def source(entry: Entry) -> str:
  """Returns the first sentence of the paragraph `Source:` of a method's docstring."""
  text = inspect.getdoc(entry.function) or ""
  stated = re.search(r"^Source: (.*?)(?:\n\n|\Z)", text, re.S | re.M)
  if not stated:
    return EMPTY
  return re.split(r"\.(?: [A-Z]|$)", " ".join(stated[1].split()).replace("arXiv ", ""))[0]


def numbers(entry: Entry) -> str:
  """Returns the defaults of a method's numbers: "clip_low=0.2, dual_clip=none"."""
  def text(value) -> str:
    return "none" if value is None else json.dumps(value) if isinstance(value, str) else repr(value)

  return ", ".join(f"{name}={text(value)}" for name, value in entry.defaults.items()) or EMPTY


def by_hand(rows: dict[str, list[str]], name: str, column: int, new: str) -> str:
  """Returns a cell that is written by hand, or what a new row begins with."""
  return rows[name][column] if name in rows else new


# --- which methods belong on which page


def of_package(function) -> bool:
  """Returns whether a method is the package's, and no plugin's."""
  return getattr(function, "__module__", "").startswith("jaxrl_llm.")


def estimator_names() -> list[str]:
  """Returns the package's estimators, family by family."""
  return [name for names in estimators.families().values() for name in names
          if of_package(estimators.spec(name).function)]


def advantage_names() -> list[str]:
  """Returns the package's advantages, in the order of their files."""
  advantages.names()
  return list(ADVANTAGE_ENTRIES.files)


# --- the parts


def estimator_table(part: str) -> str:
  """Returns the table of the estimators."""
  rows = rows_of(part)
  return table(("name", "weight of a token", "defaults", "anchor", "source"), (
      (linked(name, entry.function, METHODS), by_hand(rows, name, 0, first_sentence(entry)),
       numbers(entry), entry.anchor, source(entry))
      for name in estimator_names() for entry in [estimators.spec(name)]))


def advantage_table(part: str) -> str:
  """Returns the table of the advantages."""
  rows = rows_of(part)
  lines = []
  for name in [n for n in rows if n in advantage_names()] + [
      n for n in advantage_names() if n not in rows]:
    entry = advantages.spec(name)
    needs = sorted(f"`{field}`" for field in entry.required(entry.numbers()))
    lines.append((linked(name, entry.function, ADVANTAGES),
                  by_hand(rows, name, 0, first_sentence(entry)),
                  ", ".join(["group"] * entry.group + needs) or EMPTY, source(entry)))
  return table(("name", "A", "needs", "source"), lines)


def aggregation_table(part: str) -> str:
  """Returns the table of aggregations, with the presets that choose each."""
  rows = rows_of(part)
  names = [name for name in AGGREGATIONS if of_package(AGGREGATIONS[name].function)]
  lines = []
  for name in [n for n in rows if n in names] + [n for n in names if n not in rows]:
    users = [f"`{preset}`" for preset, keys in PRESETS.items() if keys["aggregation.name"] == name]
    lines.append((f"`{name}`", by_hand(rows, name, 0, first_sentence(AGGREGATIONS[name])),
                  ", ".join(users) or EMPTY))
  return table(("name", "loss_weights", "presets"), lines)


def recipe_table(part: str) -> str:
  """Returns the table of the presets."""
  rows, kinds = rows_of(part), ("estimator", "advantage", "aggregation")
  lines = []
  for name, keys in PRESETS.items():
    further = [f"`{key}={value}`" for key, value in keys.items()
               if key.removesuffix(".name") not in kinds]
    entry = estimators.spec(keys["estimator.name"])
    lines.append((f"`{name}`", *(f"`{keys[f'{kind}.name']}`" for kind in kinds),
                  ", ".join(further) or EMPTY, by_hand(rows, name, 4, source(entry)),
                  by_hand(rows, name, 5, UNCOMPARED)))
  return table(("preset", *kinds, "further keys", "source", "differs from the source"), lines)


def sections(page: Path, names: Callable[[], list[str]], spec: Callable[[str], Entry]):
  """Returns a part: the docstrings of the methods that have no section elsewhere in their room."""
  def text(part: str) -> str:
    pages = (other.read_text() for other in sorted(page.parent.glob("*.md")))
    others = "\n".join(pages).replace(part, "")
    headed = set(" ".join(re.findall(r"^### (.*)", others, re.M)).split())
    return "\n".join(f"### {name}\n\n{markdown(spec(name))}" for name in names()
                     if name not in headed)

  return text


def markdown(entry: Entry) -> str:
  """Returns a docstring as Markdown: its indented formulas are indented further."""
  lines = (inspect.getdoc(entry.function) or "").split("\n")
  return "".join(("  " + line if line.startswith("  ") else line).rstrip() + "\n" for line in lines)


def parts() -> list[Part]:
  """Returns every part of every page."""
  return [
      Part(METHODS, "estimators", estimator_table),
      Part(METHODS, "further estimators", sections(METHODS, estimator_names, estimators.spec)),
      Part(METHODS, "recipes", recipe_table),
      Part(ADVANTAGES, "advantages", advantage_table),
      Part(ADVANTAGES, "further advantages",
           sections(ADVANTAGES, advantage_names, advantages.spec)),
      Part(ADVANTAGES, "aggregations", aggregation_table),
      *(Part(page, "experiments/matrix.py", lambda part, text=text: text())
        for page, text in matrix.PARTS.items()),
  ]


def split(page: str, part: Part) -> tuple[str, str, str]:
  """Returns the text before a part, the part, and the text after it."""
  name = part.name if part.name.startswith("experiments/") else f"{COMMAND}, {part.name}"
  try:
    before, text, after = page_parts.split(page, name, part.page)
  except ConfigError as error:
    sys.exit(str(error))
  return before, text.strip("\n"), after


def renewed(page: str, part: Part) -> str:
  """Returns a page with one part as it has to be."""
  before, text, after = split(page, part)
  new = part.text(text).strip("\n")
  return f"{before}\n\n{new}\n\n{after}" if new else f"{before}\n{after}"


def atlas_is_old() -> bool:
  """Returns whether the atlas lacks an estimator, or has one that is gone."""
  page = HERE / "atlas/README.md"
  drawn = page_parts.tables(page_parts.split(page.read_text(), "run.py", page)[1])[0]
  return [row[0] for row in drawn.rows] != [name for name in estimator_names()
                                            if not estimators.spec(name).of_groups]


def differences(old: str, new: str) -> str:
  """Returns the first words of the lines in which two texts differ."""
  lines = [line for line in new.splitlines() if line not in old.splitlines()] or [
      f"without {line}" for line in old.splitlines() if line not in new.splitlines()]
  return "; ".join(line[:60] for line in lines[:3]) or "order"


def renew(write: bool) -> list[str]:
  """Returns what is out of date, a line per part; writes it if asked for."""
  old = []
  for part in parts():
    page = part.page.read_text()
    new = renewed(page, part)
    if new != page:
      old.append(f"{part.page.relative_to(ROOT)}, {part.name}: {differences(page, new)}")
      if write:
        write_atomically(part.page, new)
  if atlas_is_old():
    old.append("experiments/atlas: tables and picture lack an estimator, or their order is another "
               "(python experiments/atlas/run.py, a minute)")
    if write:
      subprocess.run([sys.executable, HERE / "atlas/run.py"], check=True, cwd=ROOT,
                     stdout=subprocess.DEVNULL)
  return old


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--check", action="store_true", help="writes nothing")
  args = parser.parse_args()
  old = renew(write=not args.check)
  print("\n".join(old) or "nothing is out of date")
  if old:
    print("write it with: python experiments/pages.py" if args.check else "written")
  sys.exit(int(bool(old) and args.check))


if __name__ == "__main__":
  main()
