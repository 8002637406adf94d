"""Writes the page of the arena and its figures from the results; numbers and verdicts are computed.

`run.py` calls it. Verdicts are those of `lab.statistics`, Holm over the primary cells of the page.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from claims import CLAIMS, FURTHER_SEEDS, IDEAS_AGAINST, Claim, primary_task

from jaxrl_llm.lab import arena, statistics
from jaxrl_llm.lab.arena import figures, records, tables
from jaxrl_llm.lab.arena.records import tuned
from jaxrl_llm.reporting.tables import markdown_table, replace_part

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE / "README.md"
MAP = ("warm_64", "warm_256", "warm_1024", "ending_64", "ending_256", "ending_1024")
LAW = ("none", "cispo", "minpro", "grpo", "cispo_window", "gspo", "ctpo")
NOT_RUN = "*Not run yet.*\n"
SIGNS = {1: "ahead", -1: "behind", 0: "not decided"}
Pair = tuple[arena.Cell, arena.Cell]


@functools.cache
def cells(table: str) -> tuple[arena.Cell, ...]:
  return tuple(records.read(RESULTS / f"{table}.jsonl"))


def every_table() -> list[str]:
  """Returns the tables that have results, those of the map first."""
  there = [path.stem for path in sorted(RESULTS.glob("*.jsonl")) if path.stem != "more"]
  return sorted(there, key=lambda name: (name not in MAP, name))


def pairs(claim: Claim, tables_of: Sequence[str]) -> list[Pair]:
  """Returns the pairs of cells in which both methods of a claim ran under the same conditions."""
  found = []
  for table in tables_of:
    for cell in cells(table):
      found += [(cell, other) for other in cells(table)
                if (cell.method, other.method) == (claim.first, claim.second)
                and _conditions(cell) == _conditions(other)]
  return found


def _conditions(cell: arena.Cell) -> tuple:
  """Returns what two cells must share to be compared: all but how rows are grouped."""
  setting = {k: v for k, v in cell.setting.items() if k not in ("groups", "group_size")}
  return tuple(sorted(setting.items())), cell.age, cell.noise


def primary(claim: Claim) -> Pair | None:
  """Returns the pair of cells that decides a claim, with the further seeds where it has them."""
  chosen = [pair for pair in pairs(claim, [claim.table]) if pair[0].age == claim.age
            and pair[0].noise == claim.noise and pair[0].setting["task"] == primary_task(claim)]
  if not chosen:
    return None
  cells("more")
  further = [pair for pair in pairs(claim, ["more"]) if pair[0].age == claim.age
             and pair[0].seeds == FURTHER_SEEDS
             and pair[0].setting["length"] == chosen[0][0].setting["length"]]
  return (further or chosen)[0]


@functools.cache
def primaries() -> dict[str, statistics.Difference]:
  """Returns the corrected difference of each claim whose primary cell has run, by its text."""
  found = {claim.text: primary(claim) for claim in CLAIMS}
  return statistics.compare({text: tables.difference(*pair)
                             for text, pair in found.items() if pair is not None})


def counts(claim: Claim) -> tuple[int, int, int]:
  """Returns the conditions in which `first` is ahead, in which it is behind, and all that ran.

  Each by its own 95 % interval: with many conditions, one in twenty leaves out 0 by chance.
  """
  signs = [statistics.bootstrap(tables.difference(*pair)).sign
           for pair in pairs(claim, every_table())]
  return signs.count(1), signs.count(-1), len(signs)


def claims_table() -> str:
  lines = []
  for claim in CLAIMS:
    difference = primaries().get(claim.text)
    ahead, behind, ran = counts(claim)
    cell = f"{claim.table}, age {claim.age}" + (f", noise {claim.noise:g}" if claim.noise else "")
    lines.append((claim.text, claim.source, cell,
                  "not run" if difference is None else str(difference),
                  says(claim, difference), f"{ahead} : {behind} of {ran}",
                  statistics.verdict(difference, None)))
  header = ("claim", "source", "primary cell", "difference", "the arena", "for : against",
            "both instruments")
  return markdown_table(header, lines)


def says(claim: Claim, difference: statistics.Difference | None) -> str:
  """Returns what the primary cell says of a claim."""
  if difference is None:
    return "-"
  if claim.sign == 0:
    return "differs" if difference.sign else "no difference seen"
  return {1: "agrees", -1: "contradicts", 0: "not decided"}[difference.sign * claim.sign]


def tuned_table(methods_of: Sequence[str] = MAP) -> str:
  """Returns the tuned return of each method, conditions as columns."""
  columns: dict[tuple, dict] = {}
  for table in methods_of:
    for cell in cells(table):
      columns.setdefault((table, cell.age), {})[cell.method] = cell
  names = list(dict.fromkeys(name for column in columns.values() for name in column))
  lines = [(name, *(tables.spread(tuned(column[name])) if name in column else "-"
                    for column in columns.values())) for name in names]
  header = ("method", *(f"{table.replace('_', ' ')}, age {age}" for table, age in columns))
  return markdown_table(header, lines) if lines else NOT_RUN


def shares_table() -> str:
  """Returns, for each method on rows of 256 tokens, where it holds and how it fails."""
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
  """Returns the largest age at which three quarters of the runs hold at some step, by method."""
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
  """Returns the tuned return by the number of windows, iterations / age."""
  here = {(c.method, c.age): c for c in cells("warm_256")}
  ages = sorted({age for _, age in here}, reverse=True)
  lines = [(name, *(f"{np.mean(tuned(here[name, age])):.2f}" for age in ages)) for name in LAW
           if all((name, age) in here for age in ages)]
  return markdown_table(("method", *(f"{200 / age:g} lags" for age in ages)),
                        lines) if lines else NOT_RUN


def drift_table() -> str:
  """Returns slopes of mean and spread of L_t over t, log against log, and both at the row's end."""
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
  header = ("rows", "method", "age", "mean of L_T, nats", "its slope", "spread of L_T",
            "its slope ")
  return markdown_table(header, lines) if lines else NOT_RUN


def side_table(name: str, reference: str | None = None) -> str:
  """Returns a table's tuned returns, and differences to a method, by task, mixture, age, noise."""
  lines, every = [], {}
  for cell in cells(name):
    if reference and cell.method != reference:
      for other in cells(name):
        if other.method == reference and _conditions(other) == _conditions(cell):
          every[id(cell)] = tables.difference(cell, other)
  corrected = statistics.compare(every) if every else {}
  for cell in cells(name):
    found = corrected.get(id(cell))
    where = (cell.setting["task"], cell.age)
    where += (f"{cell.noise:g}",) if name == "noise" else ()
    where += (cell.setting["mixture"],) if name == "mixtures" else ()
    lines.append((*where, cell.method, f"{cell.steps[records.best_step(cell)]:g}",
                  tables.spread(tuned(cell)), tables.spread(tuned(cell, "mean")),
                  *((("-", "-") if found is None else (str(found), SIGNS[found.sign]))
                    if reference else ())))
  header = ("task", "age", *(("noise",) if name == "noise" else ()),
            *(("mixture",) if name == "mixtures" else ()), "method", "best step", "return",
            "mean over the run", *((f"less {reference}", "") if reference else ()))
  return markdown_table(header, lines) if lines else NOT_RUN


def ideas_table() -> str:
  """Returns each idea less CISPO in the same setting; the primary cell is age 64 on `warm`."""
  every = {}
  for cell in cells("ideas"):
    for other in cells(f"{cell.setting['task']}_256"):
      if other.method == "cispo" and _conditions(other) == _conditions(cell):
        every[cell.method, cell.setting["task"], cell.age] = (cell, other)
  corrected = statistics.compare({key: tables.difference(*pair) for key, pair in every.items()})
  lines = [(*key, tables.spread(tuned(every[key][0])), str(found), SIGNS[found.sign])
           for key, found in corrected.items()]
  header = ("idea", "task", "age", "return", "less CISPO", "")
  return markdown_table(header, lines) if lines else NOT_RUN


def ideas_verdict() -> str:
  """Returns one sentence: is an idea ahead of CISPO in the cell named before?"""
  found = {}
  for cell in cells("ideas"):
    for other in cells("warm_256"):
      if other.method == "cispo" and _conditions(other) == _conditions(cell) and (
          cell.age == IDEAS_AGAINST.age):
        found[cell.method] = tables.difference(cell, other)
  if not found:
    return "No idea has run yet."
  corrected = statistics.compare(found)
  ahead = [name for name, difference in corrected.items() if difference.sign > 0]
  behind = [name for name, difference in corrected.items() if difference.sign < 0]
  text = f"Of {len(found)} ideas of our own, " + (
      f"{', '.join(ahead)} {'is' if len(ahead) == 1 else 'are'} ahead of CISPO" if ahead else
      "none is ahead of CISPO") + f" at age {IDEAS_AGAINST.age} (`warm`, 256 tokens)"
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
  shown = ", ".join(f"{name} {np.mean(tuned(here[name, oldest])):.2f}" for name in order)
  agree = [says(claim, primaries().get(claim.text)) for claim in CLAIMS]
  return (f"**On rows of 256 tokens that are {oldest} iterations old, from a warm start, each "
          f"method at its best step ends at this share of the optimum: {shown}. Of "
          f"{len(CLAIMS)} claims, the cell named beforehand agrees with {agree.count('agrees')}, "
          f"contradicts {agree.count('contradicts')}, and does not decide "
          f"{agree.count('not decided')}.**\n")


def contradictions() -> str:
  """Returns the claims that the arena contradicts, and what the transformer's table says."""
  found = [f"- {claim.text} ({claim.source}): {primaries()[claim.text]}" for claim in CLAIMS
           if says(claim, primaries().get(claim.text)) == "contradicts"]
  return "\n".join(found or ["- None of the published claims is reversed in its primary cell."]) + (
      "\n\nThe transformer's side of every claim is open until its table has results, so no "
      "contradiction between the instruments can be listed, and no claim is *decided*.\n")


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
  return markdown_table(header, lines)


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
  for task in ("warm", "ending"):
    shown = [cell for cell in cells(f"{task}_256")]
    if shown:
      figures.phase(shown, HERE / f"phase_{task}.png")
  series: dict[str, tuple[list, list]] = {}
  for cell in sorted(cells("warm_256"), key=lambda c: -c.age):
    if cell.method in LAW:
      x, y = series.setdefault(cell.method, ([], []))
      x.append(200 / cell.age)
      y.append(np.mean(tuned(cell)))
  if series:
    figures.lines(series, ("iterations / age", "final return / optimum"), HERE / "law.png")


def write() -> None:
  """Writes README.md and its figures."""
  cells.cache_clear()
  primaries.cache_clear()
  for part in parts():
    replace_part(PAGE, f"page.py {part.name}", part.text)
  draw()
