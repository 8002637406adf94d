"""Writes the page of the arena and its figures from the results; numbers and verdicts are computed.

`run.py` calls it. Verdicts are those of `lab.statistics`, Holm over the primary cells of the page.
"""

import collections
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cells import CORE
from claims import CLAIMS, IDEAS_AGAINST
from verdicts import (
  MAP,
  cells,
  claims_table,
  conditions,
  contradictions,
  every_table,
  primaries,
  says,
)

from experiments.tables_lib import arena, statistics
from experiments.tables_lib.arena import figures, methods, records, tables
from experiments.tables_lib.arena.records import tuned
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.reporting.tables import markdown_table

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
LAW = ("none", "cispo", "minpro", "grpo", "cispo_window", "gspo", "ctpo")
NOT_RUN = "*Not run yet.*\n"
STAR = "\n\\* The best step is the smallest or the largest that ran: a bound from below.\n"
SIGNS = {1: "ahead", -1: "behind", 0: "not decided"}
MEASURE = 25_000  # runs, of which the page states the time
BEST, LAST = 6, 3  # methods that the first sentence names
SMALL = 0.001  # share of the optimum below which a decided difference does not matter


def tuned_table(methods_of: Sequence[str] = MAP) -> str:
  """Returns the tuned return of each method, conditions as columns."""
  columns: dict[tuple, dict] = {}
  for table in methods_of:
    for cell in cells(table):
      columns.setdefault((table, cell.age), {})[cell.method] = cell
  names = list(dict.fromkeys(name for column in columns.values() for name in column))
  lines = [(name, *(_spread_at_best(column[name]) if name in column else "-"
                    for column in columns.values())) for name in names]
  header = ("method", *(f"{table.replace('_', ' ')}, staleness {age}" for table, age in columns))
  return (markdown_table(header, lines) + STAR) if lines else NOT_RUN


def _spread_at_best(cell: arena.Cell) -> str:
  """Returns mean and spread over seeds, with a star where the best step is an end of the grid."""
  return tables.spread(tuned(cell)) + (" *" if records.at_the_end(cell) else "")


def shares_table() -> str:
  """Returns, for each method on completions of 256 tokens, where it holds and how it fails."""
  lines = []
  for table in ("warm_256", "ending_256"):
    for cell in cells(table):
      if cell.age != 16:
        continue
      final, best = tuned(cell), tuned(cell, "best")
      reach = np.exp(np.log(records.frontier(cell)).mean())
      step = records.best_step(cell)
      lines.append((table.replace("_", " "), cell.method, f"{cell.steps[step]:g}", f"{reach:.3f}",
                    f"{np.mean(final >= records.HELD):.0%}",
                    f"{np.mean(best - final > records.FALLEN):.0%}",
                    f"{cell.dropped[step]:.1%}"))
  header = ("task", "method", "best step", "frontier", "ends >= .9", "fell", "dropped")
  return markdown_table(header, lines) if lines else NOT_RUN


def oldest_that_holds() -> str:
  """Returns, by method, the largest staleness at which 3/4 of the runs hold at some step."""
  lines = []
  for name in dict.fromkeys(c.method for t in ("warm_256", "ending_256") for c in cells(t)):
    line = [name]
    for table in ("warm_256", "ending_256"):
      ages = [cell.age for cell in cells(table) if cell.method == name and
              np.mean(np.asarray(cell.final) >= records.HELD, 1).max() >= 0.75]
      ran = any(cell.method == name for cell in cells(table))
      line.append(str(max(ages)) if ages else "below 4" if ran else "-")
    lines.append(tuple(line))
  return markdown_table(("method", "warm 256", "ending 256"), lines) if lines else NOT_RUN


def law_table() -> str:
  """Returns the tuned return by the number of windows, iterations / staleness."""
  here = {(c.method, c.age): c for c in cells("warm_256")}
  ages = sorted({age for _, age in here}, reverse=True)
  lines = [(name, *(f"{np.mean(tuned(here[name, age])):.2f}" for age in ages)) for name in LAW
           if all((name, age) in here for age in ages)]
  return markdown_table(("method", *(f"{200 / age:g} lags" for age in ages)),
                        lines) if lines else NOT_RUN


def drift_table() -> str:
  """Returns slopes of mean and spread of L_t over t, log against log, and both at the end."""
  lines = []
  for table in ("warm_256", "warm_1024", "ending_256"):
    for cell in cells(table):
      if cell.method in ("none", "cispo", "grpo", "ctpo"):
        step = records.best_step(cell)
        marks = np.log(np.arange(1, 9))
        drift, spread = np.asarray(cell.drift[step]), np.asarray(cell.spread[step])
        slopes = [np.polyfit(marks, np.log(np.maximum(np.abs(y), 1e-6)), 1)[0]
                  for y in (drift, spread)]
        lines.append((table.replace("_", " "), cell.method, cell.age, f"{drift[-1]:.1f}",
                      f"{slopes[0]:.2f}", f"{spread[-1]:.1f}", f"{slopes[1]:.2f}"))
  header = ("completions", "method", "staleness", "mean of L_T, nats", "its slope", "spread of L_T",
            "its slope ")
  return markdown_table(header, lines) if lines else NOT_RUN


def word(difference: statistics.Difference) -> str:
  """Returns the side on which a difference is; a decided one may be too small to matter."""
  small = difference.sign and abs(difference.mean) < SMALL
  return SIGNS[difference.sign] + (f", by less than {SMALL:g}" if small else "")


def side_table(name: str, reference: str | None = None) -> str:
  """Returns a table's tuned returns, and differences to a method, by setting, staleness, noise."""
  lines, every = [], {}
  for cell in cells(name):
    if reference and cell.method != reference:
      for other in cells(name):
        if other.method == reference and conditions(other) == conditions(cell):
          every[id(cell)] = tables.difference(cell, other)
  corrected = statistics.compare(every) if every else {}
  for cell in cells(name):
    gap = corrected.get(id(cell))
    where = (cell.setting["task"], cell.age)
    where += (f"{cell.noise:g}",) if name == "noise" else ()
    where += (cell.setting["mixture"],) if name == "mixtures" else ()
    lines.append((*where, cell.method, f"{cell.steps[records.best_step(cell)]:g}",
                  tables.spread(tuned(cell)), tables.spread(tuned(cell, "mean")),
                  *((("-", "-") if gap is None else (str(gap), word(gap)))
                    if reference else ())))
  header = ("task", "staleness", *(("noise",) if name == "noise" else ()),
            *(("mixture",) if name == "mixtures" else ()), "method", "best step", "return",
            "mean over the run", *((f"minus {reference}", "") if reference else ()))
  return markdown_table(header, lines) if lines else NOT_RUN


def ideas_table() -> str:
  """Returns each idea minus CISPO in the same setting; primary: staleness 64 on `warm`."""
  every = {}
  for cell in cells("ideas"):
    for other in cells(f"{cell.setting['task']}_256"):
      if other.method == "cispo" and conditions(other) == conditions(cell):
        every[cell.method, cell.setting["task"], cell.age] = (cell, other)
  corrected = statistics.compare({key: tables.difference(*pair) for key, pair in every.items()})
  lines = [(*key, tables.spread(tuned(every[key][0])), str(difference), word(difference))
           for key, difference in corrected.items()]
  header = ("idea", "task", "staleness", "return", "minus CISPO", "")
  return markdown_table(header, lines) if lines else NOT_RUN


def ideas_verdict() -> str:
  """Returns one sentence: is an idea ahead of CISPO in the cell named before?"""
  differences = {}
  for cell in cells("ideas"):
    for other in cells("warm_256"):
      if other.method == "cispo" and conditions(other) == conditions(cell) and (
          cell.age == IDEAS_AGAINST.age):
        differences[cell.method] = tables.difference(cell, other)
  if not differences:
    return "No idea has run yet."
  corrected = statistics.compare(differences)
  ahead = [name for name, difference in corrected.items() if difference.sign > 0]
  behind = [name for name, difference in corrected.items() if difference.sign < 0]
  text = f"Of {len(differences)} ideas of our own, " + (
      f"{', '.join(ahead)} {'is' if len(ahead) == 1 else 'are'} ahead of CISPO" if ahead else
      "none is ahead of CISPO") + f" at staleness {IDEAS_AGAINST.age} (`warm`, 256 tokens)"
  return text + (f"; {', '.join(behind)} {'is' if len(behind) == 1 else 'are'} behind." if behind
                 else ".")


def answer() -> str:
  """Returns the page's first two sentences."""
  here = {(c.method, c.age): c for c in cells("warm_256")}
  oldest = max((age for _, age in here), default=None)
  if oldest is None:
    return NOT_RUN
  order = sorted((name for name, age in here if age == oldest),
                 key=lambda name: -np.mean(tuned(here[name, oldest])))
  ends = [f"{name} {np.mean(tuned(here[name, oldest])):.2f}" for name in order]
  shown = ", ".join(ends[:BEST]) + " (the best of " + f"{len(ends)}), and "
  shown += ", ".join(ends[-LAST:]) + " (the last)"
  verdicts = {claim: says(claim, primaries().get(claim.text)) for claim in CLAIMS}
  decided = "; ".join(f"{claim.text}: {primaries()[claim.text]}" for claim, verdict in
                      verdicts.items() if verdict == "agrees")
  counts = collections.Counter(verdict.replace("-", "not run") for verdict in verdicts.values())
  return (f"**On completions of 256 tokens that are {oldest} iterations old, from a warm start, "
          f"each method at the step that is best on these seeds ends at this share of the optimum: "
          f"{shown}. Of {len(CLAIMS)} claims, each in the cell named beforehand: "
          + ", ".join(f"{word} {count}" for word, count in counts.most_common())
          + f". What agrees: {decided or 'nothing'}.**\n")


def time_table() -> str:
  """Returns runs and processor seconds, table by table."""
  lines, totals = [], np.zeros(3)
  for table in [*every_table(), *(["more"] if cells("more") else [])]:
    runs = sum(np.size(cell.final) for cell in cells(table))
    seconds = np.array([sum(c.seconds[i] * c.share for c in cells(table)) for i in (0, 1)])
    tokens = sum(np.size(c.final) * c.setting["iterations"] * c.setting["groups"]
                 * c.setting["group_size"] * c.setting["length"] for c in cells(table))
    totals += (runs, *seconds)
    lines.append((table, runs, f"{seconds[0]:.0f}", f"{seconds[1]:.0f}",
                  f"{60 * runs / seconds[1]:.0f}", f"{1e9 * seconds[1] / tokens:.0f}"))
  lines.append(("all", f"{totals[0]:.0f}", f"{totals[1]:.0f}", f"{totals[2]:.0f}", "", ""))
  header = ("table", "runs", "to compile, s", "to run, s", "runs a core-minute", "ns a token")
  minutes = (totals[1] + totals[2]) / 60
  return (f"{totals[0]:.0f} runs took {minutes:.0f} core-minutes, compilation included: at this "
          f"rate {minutes / 2 * MEASURE / totals[0]:.0f} minutes of two cores for {MEASURE:,} "
          f"runs.\n\n{markdown_table(header, lines)}")


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of the page, and the function that writes it."""

  name: str
  text: str


def parts() -> list[Part]:
  return [
      Part("answer", answer()), Part("contradictions", contradictions()),
      Part("claims", claims_table()), Part("oldest", oldest_that_holds()),
      Part("tuned", tuned_table()), Part("shares", shares_table()), Part("law", law_table()),
      Part("drift", drift_table()), Part("noise", side_table("noise", "cispo")),
      Part("baselines", side_table("baselines", "rloo_4")),
      Part("aggregation", side_table("aggregation", "token")),
      Part("credit", side_table("credit", "grpo")), Part("anchors", side_table("anchors", "grpo")),
      Part("mixtures", side_table("mixtures", "cispo")), Part("gru", side_table("gru", "cispo")),
      Part("sgd", side_table("sgd", "cispo")),
      Part("ideas", f"{ideas_verdict()}\n\n{ideas_table()}"), Part("time", time_table()),
  ]


def draw() -> None:
  """Draws the phase diagrams of both tasks, and the law of windows."""
  first = {methods.parse(text, 256).label for text in CORE}
  for task in ("warm", "ending"):
    for name, core in ((f"phase_{task}", True), (f"phase_{task}_further", False)):
      shown = [cell for cell in cells(f"{task}_256") if (cell.method in first) == core]
      if shown:
        figures.phase(shown, HERE / f"{name}.png")
  series: dict[str, tuple[list, list]] = {}
  for cell in sorted(cells("warm_256"), key=lambda c: -c.age):
    if cell.method in LAW:
      x, y = series.setdefault(cell.method, ([], []))
      x.append(200 / cell.age)
      y.append(np.mean(tuned(cell)))
  if series:
    figures.lines(series, ("iterations / staleness", "final return / optimum"), HERE / "law.png")


def write() -> None:
  """Writes README.md and its figures."""
  cells.cache_clear()
  primaries.cache_clear()
  for part in parts():
    replace_part(PAGE, f"page.py {part.name}", part.text)
  draw()
