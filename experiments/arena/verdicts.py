"""The verdict on each claim: in the arena, in the transformer, and of both together.

A claim is asked by two measures, the end of a run and the mean over it. Intervals and the rule of
verdicts are those of `tables_lib/statistics.py`; Holm's correction is over all claims and measures
of a test bed.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import transformer
from claims import ASKED_AFRESH, CLAIMS, FRESH_SEEDS, FURTHER_SEEDS, MAP, Claim, primary_task

from experiments.tables_lib import arena, statistics
from experiments.tables_lib.arena import records, tables
from experiments.tables_lib.statistics import MEASURES, Difference
from jaxrl_llm.reporting.tables import markdown_table

RESULTS = Path(__file__).parent / "results"
KINDS = {"end": "final", "mean": "mean"}  # names in `records.Cell`, by measure
BESIDE_MAP = ("more", *ASKED_AFRESH)  # tables of further seeds, at the steps that the map chose
Pair = tuple[arena.Cell, arena.Cell]


@functools.cache
def cells(table: str) -> tuple[arena.Cell, ...]:
  """Returns the cells of a table; of further seeds each step by itself, which the map chose."""
  read = records.read(RESULTS / f"{table}.jsonl")
  return tuple(read if table in BESIDE_MAP else records.merged(read))


def every_table() -> list[str]:
  """Returns the tables that have results, those of the map first."""
  there = [path.stem for path in sorted(RESULTS.glob("*.jsonl")) if path.stem not in BESIDE_MAP]
  return sorted(there, key=lambda name: (name not in MAP, name))


def pairs(claim: Claim, tables_of: Sequence[str]) -> list[Pair]:
  """Returns the pairs of cells in which both methods of a claim ran under the same conditions."""
  out = []
  for table in tables_of:
    for cell in cells(table):
      out += [(cell, other) for other in cells(table)
              if (cell.method, other.method) == (claim.first, claim.second)
              and conditions(cell) == conditions(other)]
  return out


def conditions(cell: arena.Cell) -> tuple:
  """Returns what two cells must share to be compared: all but how rows are grouped."""
  setting = {k: v for k, v in cell.setting.items() if k not in ("groups", "group_size")}
  return tuple(sorted(setting.items())), cell.age, cell.noise


def within(claim: Claim) -> list[Pair]:
  """Returns the pairs of cells that meet a claim's condition; those of fresh seeds, if all ran."""
  chosen = [pair for pair in pairs(claim, claim.tables) if pair[0].noise == claim.noise
            and pair[0].setting["length"] >= claim.shortest]
  fresh = [pair for pair in map(_fresh, chosen) if pair]
  return fresh if len(fresh) == len(chosen) else chosen


def _fresh(pair: Pair) -> Pair | None:
  """Returns the cells of fresh seeds at the steps that a pair of the map chose."""
  there = [next((other for file in ASKED_AFRESH for other in cells(file)
                 if other.seeds == FRESH_SEEDS
                 and (other.text, other.setting) == (cell.text, cell.setting)
                 and other.age == cell.age and other.noise == cell.noise
                 and other.steps == (cell.steps[records.best_step(cell)],)), None)
           for cell in pair]
  return (there[0], there[1]) if there[0] and there[1] else None


def pooled(claim: Claim, measure: str) -> np.ndarray | None:
  """Returns `first` minus `second` plus the margin, [seeds], the mean over the claim's cells."""
  chosen = [tables.difference(*pair, KINDS[measure]) for pair in within(claim)]
  return np.mean(chosen, 0) + claim.margin if chosen else None


@functools.cache
def differences() -> dict[str, dict[str, Difference]]:
  """Returns the corrected differences of each claim that has run, by its text and measure."""
  values = {(claim.text, measure): pooled(claim, measure)
            for claim in CLAIMS for measure in MEASURES}
  out: dict[str, dict[str, Difference]] = {}
  ran = {key: value for key, value in values.items() if value is not None}
  for (text, measure), difference in statistics.compare(ran).items():
    out.setdefault(text, {})[measure] = difference
  return out


def judged(claim: Claim) -> statistics.Judgement:
  """Returns the verdict on a claim, from both test beds."""
  return statistics.verdict(differences().get(claim.text),
                            transformer.differences().get(claim.text))


def words(claim: Claim) -> str:
  """Returns the verdict in words: "decided for (end, mean)"."""
  verdict = judged(claim)
  if verdict.verdict == "open":
    against = contradicted(claim)
    return f"open: beds differ ({', '.join(against)})" if against else "open"
  return (f"{verdict.verdict} {'for' if verdict.side > 0 else 'against'} "
          f"({', '.join(verdict.measures)})")


def contradicted(claim: Claim) -> tuple[str, ...]:
  """Returns the measures by which the test beds exclude each other."""
  return statistics.contradictions(differences().get(claim.text),
                                   transformer.differences().get(claim.text))


def counts(claim: Claim, measure: str) -> tuple[int, int, int]:
  """Returns the cells of the claim in which it holds, in which the opposite does, and all.

  Each by its own 95 % interval: with many cells, one in twenty leaves out 0 by chance.
  """
  signs = [statistics.bootstrap(tables.difference(*pair, KINDS[measure]) + claim.margin).sign
           for pair in within(claim)]
  return signs.count(1), signs.count(-1), len(signs)


def verdicts_table() -> str:
  """Returns a line for each claim: cells for and against by each measure, and the verdict."""
  lines = []
  for claim in CLAIMS:
    (ahead, behind, ran), (ahead_mean, behind_mean, _) = (
        counts(claim, measure) for measure in MEASURES)
    chosen = within(claim)
    lines.append((claim.text, claim.source, ran, len(chosen[0][0].seeds) if chosen else 0,
                  f"{ahead} : {behind}", f"{ahead_mean} : {behind_mean}", words(claim)))
  return markdown_table(("claim", "source", "cells", "seeds", "for : against, end",
                         "for : against, mean", "verdict"), lines)


def differences_table() -> str:
  """Returns a line for each claim: the difference by bed and measure."""
  beds = {"arena": differences(), "transformer": transformer.differences()}
  lines = [(claim.text, *(
      interval(beds[bed].get(claim.text, {}).get(measure), claim.margin if bed == "arena" else 0)
      for bed in beds for measure in MEASURES)) for claim in CLAIMS]
  return markdown_table(("claim", *(f"{bed}, {measure}" for bed in beds for measure in MEASURES)),
                        lines)


def t_table() -> str:
  """Returns a line for each claim: Student's t interval in place of the bootstrap's, at the level
  that Holm's correction leaves to each.
  """
  beds = (("arena", differences(), {(claim.text, measure): pooled(claim, measure)
                                    for claim in CLAIMS for measure in MEASURES}),
          ("transformer", transformer.differences(), transformer.paired(transformer.values())))
  lines = []
  for claim in CLAIMS:
    cells_of_claim = []
    for bed, corrected, values in beds:
      for measure in MEASURES:
        beside = corrected.get(claim.text, {}).get(measure)
        by_t = beside and statistics.t_interval(values[claim.text, measure], beside.level)
        mark = "" if not by_t or by_t.sign == beside.sign else " *"
        cells_of_claim.append(interval(by_t, claim.margin if bed == "arena" else 0) + mark)
    lines.append((claim.text, *cells_of_claim))
  header = ("claim, by t", *(f"{bed}, {measure}" for bed, *_ in beds for measure in MEASURES))
  return markdown_table(header, lines) + (
      "\n\\* The bootstrap's interval says the other: one leaves out 0, and one does not.\n")


def interval(difference: Difference | None, margin: float = 0.0) -> str:
  """Returns "+0.203 (+0.185 to +0.223)", without the margin; "-" for None."""
  if difference is None:
    return "-"
  mean, low, high = (value - margin for value in difference[:3])
  return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def contradictions() -> str:
  """Returns the claims on which the test beds differ, then those that the arena reverses."""
  there = transformer.differences()
  lines = [f"- **The test beds differ**, by the {measure}: {claim.text} ({claim.source}). "
           f"Arena {interval(differences()[claim.text][measure], claim.margin)}, transformer "
           f"{interval(there[claim.text][measure])}"
           for claim in CLAIMS for measure in contradicted(claim)]
  lines += [f"- Reversed, {verdict.verdict} by {' and '.join(verdict.measures)}: {claim.text} "
            f"({claim.source})" for claim in CLAIMS
            if (verdict := judged(claim)).side < 0]
  return "\n".join(lines or ["- None: no claim is reversed, and the test beds nowhere differ."]) + (
      "\n")


def named_pair(claim: Claim) -> Pair | None:
  """Returns the cells named before the map, with the further seeds where it has them."""
  chosen = [pair for pair in pairs(claim, [claim.table]) if pair[0].age == claim.age
            and pair[0].noise == claim.noise and pair[0].setting["task"] == primary_task(claim)]
  if not chosen:
    return None
  steps = [(cell.steps[records.best_step(cell)],) for cell in chosen[0]]
  further = [pair for pair in pairs(claim, ["more"]) if pair[0].age == claim.age
             and pair[0].seeds == FURTHER_SEEDS and [cell.steps for cell in pair] == steps
             and pair[0].setting["length"] == chosen[0][0].setting["length"]]
  return (further or chosen)[0]


def named_table() -> str:
  """Returns a line for each claim: the one cell that was named before the map was run."""
  named = {(claim.text, measure): tables.difference(*pair, KINDS[measure]) + claim.margin
           for claim in CLAIMS if (pair := named_pair(claim)) for measure in MEASURES}
  corrected = statistics.compare(named)
  lines = []
  for claim in CLAIMS:
    noise = f", noise {claim.noise:g}" if claim.noise else ""
    both = [corrected.get((claim.text, measure)) for measure in MEASURES]
    lines.append((claim.text, f"{claim.table}, staleness {claim.age}{noise}",
                  both[0].count if both[0] else 0, *(interval(d, claim.margin) for d in both)))
  return markdown_table(("claim", "cell", "seeds", "end", "mean over the run"), lines)
