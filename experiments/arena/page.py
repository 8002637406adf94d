"""Writes the pages of the arena and their figures; numbers and verdicts are computed.

`run.py` calls it. README.md has the claims, details.md the tables behind them. Verdicts are those
of verdicts.py.
"""

import collections
import dataclasses
from pathlib import Path

import forest
import numpy as np
import transformer
from cells import CORE
from claims import CLAIMS, IDEAS_AGAINST
from returns import NOT_RUN, fresh_table, optimism_table, tuned_table
from verdicts import (
  BESIDE_MAP,
  cells,
  conditions,
  contradicted,
  contradictions,
  differences,
  differences_table,
  every_table,
  interval,
  judged,
  named_table,
  t_table,
  verdicts_table,
)

from experiments.tables_lib import statistics
from experiments.tables_lib.arena import figures, methods, records, tables
from experiments.tables_lib.arena.records import tuned
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.reporting.tables import markdown_table

HERE = Path(__file__).parent
PAGE, DETAILS = HERE / "README.md", HERE / "details.md"
LAW = ("none", "cispo", "minpro", "grpo", "cispo_window", "gspo", "ctpo")
SIGNS = {1: ", ahead", -1: ", behind", 0: ""}
MEASURE = 25_000  # runs, of which the page states the time
KINDS = {"final": "end", "mean": "mean"}  # measures, by their name in a cell


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
  header = ("task", "method", "learning rate", "frontier", "ends >= .9", "fell", "dropped")
  return markdown_table(header, lines) if lines else NOT_RUN


def oldest_that_holds() -> str:
  """Returns, by method, the largest staleness at which 3/4 of the runs hold at the best rate."""
  lines = []
  for name in dict.fromkeys(c.method for t in ("warm_256", "ending_256") for c in cells(t)):
    line = [name]
    for table in ("warm_256", "ending_256"):
      ages = [cell.age for cell in cells(table) if cell.method == name and
              np.mean(tuned(cell) >= records.HELD) >= 0.75]
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


def side_table(name: str, reference: str) -> str:
  """Returns a table's tuned returns, and differences to a method, by setting, staleness, noise."""
  corrected = compared({(index, kind): tables.difference(cell, other, kind)
                        for index, cell in enumerate(cells(name)) for other in cells(name)
                        if cell.method != reference == other.method
                        and conditions(other) == conditions(cell) for kind in KINDS})
  lines = []
  for index, cell in enumerate(cells(name)):
    where = [cell.setting["task"], str(cell.age)]
    where += [f"noise {cell.noise:g}"] if name == "noise" else []
    where += [f"by {cell.setting['mixture']}"] if name == "mixtures" else []
    where = [where[0], f"{cell.setting['length']} tokens"] if name == "terminal" else where
    where[1] = {"0": "new groups only"}.get(where[1], f"0 to {where[1]}") if name == "replay" else (
        where[1])
    lines.append((", ".join(where), cell.method, f"{cell.steps[records.best_step(cell)]:g}",
                  *(tables.spread(tuned(cell, kind)) for kind in KINDS),
                  *(corrected.get((index, kind), "-") for kind in KINDS)))
  header = ("task, staleness", "method", "learning rate", "end", "mean",
            *(f"{measure} minus {reference}" for measure in KINDS.values()))
  return markdown_table(header, lines) if lines else NOT_RUN


def compared(every: dict) -> dict:
  """Returns "+0.203 (+0.185 to +0.223), ahead" by key, corrected over all of them."""
  return {key: interval(difference) + SIGNS[difference.sign]
          for key, difference in (statistics.compare(every) if every else {}).items()}


def ideas_table() -> str:
  """Returns each idea minus CISPO in the same setting; primary: staleness 64 on `warm`."""
  every = {}
  for cell in cells("ideas"):
    for other in cells(f"{cell.setting['task']}_256"):
      if other.method == "cispo" and conditions(other) == conditions(cell):
        every[cell.method, cell.setting["task"], cell.age] = (cell, other)
  corrected = compared({(key, kind): tables.difference(*pair, kind)
                        for key, pair in every.items() for kind in KINDS})
  lines = [(*key, *(tables.spread(tuned(cell, kind)) for kind in KINDS),
            *(corrected[key, kind] for kind in KINDS)) for key, (cell, _) in every.items()]
  header = ("idea", "task", "staleness", "end", "mean",
            *(f"{measure} minus CISPO" for measure in KINDS.values()))
  return markdown_table(header, lines) if lines else NOT_RUN


def ideas_verdict() -> str:
  """Returns one sentence: is an idea ahead of CISPO in the cell named before?"""
  gaps = {}
  for cell in cells("ideas"):
    for other in cells("warm_256"):
      if other.method == "cispo" and conditions(other) == conditions(cell) and (
          cell.age == IDEAS_AGAINST.age):
        gaps[cell.method] = tables.difference(cell, other)
  if not gaps:
    return "No idea has run yet."
  corrected = statistics.compare(gaps)
  ahead = [name for name, difference in corrected.items() if difference.sign > 0]
  behind = [name for name, difference in corrected.items() if difference.sign < 0]
  text = f"Of {len(gaps)} ideas of our own, " + (
      f"{', '.join(ahead)} {'is' if len(ahead) == 1 else 'are'} ahead of CISPO" if ahead else
      "none is ahead of CISPO") + (
          f" by the end at staleness {IDEAS_AGAINST.age} (`warm`, 256 tokens), corrected over "
          f"these {len(gaps)}")
  return text + (f"; {', '.join(behind)} {'is' if len(behind) == 1 else 'are'} behind." if behind
                 else ".")


def answer() -> str:
  """Returns the page's first sentences: what is decided, where the test beds differ, counts."""
  if not differences():
    return NOT_RUN
  there = transformer.differences()
  decided = {}
  for claim in CLAIMS:
    if (verdict := judged(claim)).verdict == "decided":
      numbers = [f"{bed[claim.text][measure].mean:+.2f}" for bed in (differences(), there)
                 for measure in statistics.MEASURES]
      decided[claim.text if verdict.side > 0 else f"the opposite of \"{claim.text}\""] = (
          f"{numbers[0]} and {numbers[1]} of the optimum, transformer {numbers[2]} and "
          f"{numbers[3]}")
  differ = [f"{claim.text} (by {' and '.join(by)})" for claim in CLAIMS
            if (by := contradicted(claim))]
  counts = collections.Counter(judged(claim).verdict for claim in CLAIMS)
  return ("**Decided in both test beds, on completions that are 4 to 64 iterations old (difference "
          "at the end, and in the mean over the run):**\n\n"
          + "\n".join(f"- {text}: {numbers}" for text, numbers in decided.items())
          + f"\n\n**The test beds differ on {'; '.join(differ) or 'nothing'}. Of {len(CLAIMS)} "
          "claims " + ", ".join(f"{counts[name]} are {name}" for name in
                                ("decided", "supported", "open")) + ".**\n")


def time_table() -> str:
  """Returns runs and processor seconds, table by table."""
  lines, totals = [], np.zeros(3)
  for table in [*every_table(), *(name for name in BESIDE_MAP if cells(name))]:
    runs = sum(np.size(cell.final) for cell in cells(table))
    seconds = np.array([sum(c.seconds[i] * c.share for c in cells(table)) for i in (0, 1)])
    tokens = sum(np.size(c.final) * c.setting["iterations"] * c.setting["groups"]
                 * c.setting["group_size"] * c.setting["length"] for c in cells(table))
    totals += (runs, *seconds)
    if not seconds.any():  # its seeds ran in the programs of another table
      lines.append((table, runs, "-", "-", "-", "-"))
      continue
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
  """A part of a page, and its text."""

  name: str
  text: str
  page: Path = DETAILS


def parts() -> list[Part]:
  return [
      Part("answer", answer(), PAGE), Part("forest", forest.table(), PAGE),
      Part("contradictions", contradictions(), PAGE), Part("claims", verdicts_table(), PAGE),
      Part("differences", differences_table(), PAGE),
      Part("fresh warm", fresh_table("warm"), PAGE),
      Part("fresh ending", fresh_table("ending"), PAGE),
      Part("named", named_table()), Part("t", t_table()),
      Part("warm", tuned_table("warm")), Part("ending", tuned_table("ending")),
      Part("optimism", optimism_table()),
      Part("oldest", oldest_that_holds()),
      Part("shares", shares_table()), Part("law", law_table()),
      Part("drift", drift_table()), Part("noise", side_table("noise", "cispo")),
      Part("baselines", side_table("baselines", "rloo_4")),
      Part("aggregation", side_table("aggregation", "token")),
      Part("credit", side_table("credit", "grpo")), Part("anchors", side_table("anchors", "grpo")),
      Part("mixtures", side_table("mixtures", "cispo")),
      Part("terminal", side_table("terminal", "grpo_sequence")),
      Part("replay", side_table("replay", "cispo")), Part("gru", side_table("gru", "cispo")),
      Part("sgd", side_table("sgd", "cispo")),
      Part("ideas", f"{ideas_verdict()}\n\n{ideas_table()}"), Part("time", time_table()),
  ]


def draw() -> None:
  """Draws the comparison with GRPO, the phase diagrams of both tasks, and the law of windows."""
  forest.draw(HERE / "forest.png")
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
  """Writes README.md, details.md and their figures."""
  cells.cache_clear()
  differences.cache_clear()
  for part in parts():
    replace_part(part.page, f"page.py {part.name}", part.text)
  draw()
