"""A published claim, the committed table with its counterpart, and a short version made anew.

Nothing here touches a device, so that the commands of `live` have them for themselves. Only what a
notebook calls, `show` and `live`, needs IPython.
"""

import dataclasses
import functools
import importlib.util
import json
import operator
import re
import shlex
import subprocess
import sys
from pathlib import Path

from experiments.report.run_folder import read_run
from experiments.tables_lib import page_parts
from experiments.tables_lib.checkout import ROOT, checkout_env, fast, fresh
from experiments.tables_lib.page_parts import Place, split
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.reporting.tables import MISSING, markdown_table


@dataclasses.dataclass(frozen=True)
class Claim:
  """A published claim and its counterpart here.

  Attributes:
    text: the claim.
    source: where it was published, and how it is known: read there, or second-hand.
    value: the published number, if the claim has one; `here` is its counterpart.
    place: of the counterpart: in the table's page, or the keys that lead to it in results.json next
      to that.
  """

  text: str
  source: str
  value: float | None = None
  place: Place | tuple[str | int, ...] = ()

  def here(self, folder: Path) -> float | None:
    """Returns the counterpart in the committed results, None if the claim names none.

    Raises:
      ConfigError: the file does not hold it, or holds several that match.
    """
    if not self.place:
      return None
    path = folder / ("README.md" if isinstance(self.place, Place) else "results.json")
    try:
      if isinstance(self.place, Place):
        return self.place.read(path)
      return float(functools.reduce(operator.getitem, self.place, json.loads(path.read_text())))
    except (ValueError, LookupError, TypeError) as error:
      raise ConfigError(f"{path}: {self.place!r} does not lead to one number ({error}). "
                        "Fix: its place in experiments/tables.py or matrix.py.") from error


@dataclasses.dataclass(frozen=True)
class Number:
  """A number that the short version makes, and the committed one.

  Attributes:
    text: what it is.
    place: of the committed number in the table's page.
    live: the file of the short version that has a table with this place; or a metric of its run.
    scale: multiplies the short version's number.
    tolerance: the two agree up to it.
  """

  text: str
  place: Place
  live: str
  scale: float = 1.0
  tolerance: float = 0.0

  def row(self, page: Path, out: Path) -> tuple[str, str, str, str]:
    """Returns (text, committed, short version, verdict)."""
    committed = self.place.read(page)
    if self.live.endswith(".md"):
      live = dataclasses.replace(self.place, part="").read(out / self.live)
    else:
      live = float(read_run(out).series(self.live)[1][-1])
    live *= self.scale
    agrees = abs(live - committed) <= self.tolerance
    return self.text, _number(committed), _number(live), _verdict(agrees)


@dataclasses.dataclass(frozen=True)
class Runs:
  """Runs of the short version that the committed results.jsonl has, too, longer and of more seeds.

  Attributes:
    names: the run's folder to the name of the committed runs, without their seed.
    column: of a committed result's accuracy at its `iterations`.
    seeds: that count; empty: all. Neither the seed of a screening nor one whose warm start learned
      nothing is a counterpart.
    margin: of the range over seeds, within which the two agree: an interval of 256 problems is .06
      wide to each side, and processors round differently.
  """

  names: dict[str, str]
  column: str = "accuracy"
  margin: float = 0.1
  seeds: tuple[int, ...] = ()

  def rows(self, folder: Path, out: Path) -> list[tuple[str, str, str, str]]:
    """Returns (run, committed, short version, verdict) at the last evaluation of each run."""
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    rows = []
    for run, name in self.names.items():
      iterations, values = read_run(out / run).series("eval/accuracy")
      at, final_value = int(iterations[-1]), float(values[-1])
      seeds = [dict(zip(line["measured"]["iterations"], line["measured"][self.column],
                        strict=True)).get(at)
               for line in results
               if (match := re.fullmatch(rf"{re.escape(name)}_seed(\d+)", line["name"]))
               and (not self.seeds or int(match[1]) in self.seeds)]
      seeds = [value for value in seeds if value is not None]
      text = f"accuracy of {run} at iteration {at}"
      if not seeds:
        rows.append((text, MISSING, _number(final_value), "no counterpart"))
        continue
      agrees = min(seeds) - self.margin <= final_value <= max(seeds) + self.margin
      rows.append((text, f"{min(seeds):.2f} to {max(seeds):.2f}, {len(seeds)} seeds",
                   _number(final_value), _verdict(agrees)))
    return rows


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of experiments/.

  Attributes:
    folder: the folder of its page and figures.
    claims: the published claims to compare it with.
    live: commands of a version that takes minutes, without `python`. {out} becomes a new folder,
      {fast} the flags `fast`.
    fast: flags with JAXRL_FAST=1; there are none without.
    page: the page with the committed table, between comments or as the full file.
    numbers, runs: of the short version that have a committed counterpart.
    parts: of the page that are shown, with the figures of these names; empty: all.
    needs: modules without which `live` only says to run `install`.
  """

  folder: str
  claims: tuple[Claim, ...]
  live: tuple[str, ...]
  fast: str = ""
  page: str = "README.md"
  numbers: tuple[Number, ...] = ()
  runs: Runs | None = None
  parts: tuple[str, ...] = ()
  needs: tuple[str, ...] = ()
  install: str = ""

  @property
  def path(self) -> Path:
    return ROOT / self.folder

  @property
  def exists(self) -> bool:
    """Returns whether the table is committed."""
    return (self.path / self.page).exists()

  def commands(self, out: Path) -> list[list[str]]:
    """Returns the arguments of each live command, for this process's Python."""
    flags = self.fast if fast() else ""
    return [[sys.executable, *shlex.split(text.format(out=shlex.quote(str(out)), fast=flags))]
            for text in self.live]

  def figures(self) -> list[Path]:
    """Returns the committed figures."""
    shown = {Path(name).stem for name in self.parts}
    return sorted(path for path in (*self.path.glob("*.png"), *self.path.glob("results/*.png"))
                  if not shown or path.stem in shown)

  def missing(self) -> list[str]:
    """Returns the modules that the short version needs and that are not installed."""
    return [name for name in self.needs if importlib.util.find_spec(name) is None]

  def committed(self) -> str:
    """Returns the committed tables, in Markdown; what a page says around them stays there."""
    if not self.exists:
      return f"{self.folder} has no committed table yet."
    text = (self.path / self.page).read_text()
    return "\n\n".join(split(text, name, self.page)[1].strip("\n")
                       for name in self.parts or page_parts.names(text)) or text

  def comparison(self) -> str:
    """Returns the table of the claims and their counterparts here, in Markdown."""
    if not self.claims:
      return "No claim is published for this table: the task is this project's own."
    rows = []
    for claim in self.claims:
      value = claim.here(self.path) if self.exists else None
      gap = None if value is None or claim.value is None else value - claim.value
      rows.append((claim.text, claim.source, *map(_number, (claim.value, value)),
                   _number(gap, "+")))
    return markdown_table(("claim", "source", "published", "here", "difference"), rows)


  def verdicts(self, out: Path) -> str:
    """Returns the short version in `out` next to the committed values, in Markdown."""
    rows = [number.row(self.path / self.page, out) for number in self.numbers]
    rows += self.runs.rows(self.path, out) if self.runs else []
    if not rows:
      return ("The committed table has no number of this short version: its settings are smaller. "
              "Compare the tables above, which it made, with the committed ones for their order.")
    if fast():
      rows = [(*row[:3], "too small to compare") for row in rows]
    return markdown_table(("", "committed", "short version", "verdict"), rows)


def show(table: Table) -> None:
  """Shows the claims, then the committed table and its figures."""
  from IPython.display import Image, Markdown, display

  display(Markdown(f"{table.comparison()}\n[{table.folder}]({table.folder}/{table.page})\n\n"
                   f"{table.committed()}"))
  for figure in table.figures():
    display(Image(str(figure), width=900))


def live(table: Table) -> None:
  """Runs the table's commands at notebook size, showing what they print, their figures, and their
  numbers next to the committed ones. Without a module that they need it says what to install.

  Raises:
    SystemExit: a command failed; the message has its last line.
  """
  from IPython.display import Image, Markdown, display

  if missing := table.missing():
    print(f"{', '.join(missing)} not installed. Fix: {table.install}")
    return
  out = fresh(Path(table.folder).name)
  for command in table.commands(out):
    print("python", *command[1:])
    with subprocess.Popen(command, cwd=ROOT, env=checkout_env(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as process:
      line = ""
      for line in process.stdout:
        print(line, end="")
    if process.returncode:
      sys.exit(line.strip())
  for figure in sorted(out.glob("**/*.png")):
    display(Image(str(figure), width=900))
  display(Markdown(table.verdicts(out)))


def _verdict(agrees: bool) -> str:
  return "agrees" if agrees else "differs"


def _number(value: float | None, sign: str = "") -> str:
  return MISSING if value is None else f"{value:{sign}.4g}"
