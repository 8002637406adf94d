"""The verdict on each claim: in the arena, and of both instruments together.

Intervals and verdicts are those of `lab.statistics`; Holm's correction is over the primary cells of
the page, and over the claims that the transformer's table answers.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import transformer
from claims import CLAIMS, FURTHER_SEEDS, Claim, primary_task

from experiments.tables_lib import arena, statistics
from experiments.tables_lib.arena import records, tables
from jaxrl_llm.reporting.tables import markdown_table

RESULTS = Path(__file__).parent / "results"
MAP = ("warm_64", "warm_256", "warm_1024", "ending_64", "ending_256", "ending_1024")
Pair = tuple[arena.Cell, arena.Cell]


@functools.cache
def cells(table: str) -> tuple[arena.Cell, ...]:
  """Returns the cells of a table; of further seeds each step by itself, which the map chose."""
  read = records.read(RESULTS / f"{table}.jsonl")
  return tuple(read if table == "more" else records.merged(read))


def every_table() -> list[str]:
  """Returns the tables that have results, those of the map first."""
  there = [path.stem for path in sorted(RESULTS.glob("*.jsonl")) if path.stem != "more"]
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


def primary(claim: Claim) -> Pair | None:
  """Returns the pair of cells that decides a claim, with the further seeds where it has them."""
  chosen = [pair for pair in pairs(claim, [claim.table]) if pair[0].age == claim.age
            and pair[0].noise == claim.noise and pair[0].setting["task"] == primary_task(claim)]
  if not chosen:
    return None
  steps = [(cell.steps[records.best_step(cell)],) for cell in chosen[0]]
  further = [pair for pair in pairs(claim, ["more"]) if pair[0].age == claim.age
             and pair[0].seeds == FURTHER_SEEDS and [cell.steps for cell in pair] == steps
             and pair[0].setting["length"] == chosen[0][0].setting["length"]]
  return (further or chosen)[0]


@functools.cache
def primaries() -> dict[str, statistics.Difference]:
  """Returns the corrected difference of each claim whose primary cell has run, by its text."""
  pairs = {claim.text: primary(claim) for claim in CLAIMS}
  return statistics.compare({text: tables.difference(*pair)
                             for text, pair in pairs.items() if pair is not None})


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
    noise = f", noise {claim.noise:g}" if claim.noise else ""
    cell = f"{claim.table}, staleness {claim.age}{noise}"
    there = transformer.differences().get(claim.text)
    lines.append((claim.text, claim.source, cell,
                  "not run" if difference is None else str(difference),
                  says(claim, difference), f"{ahead} : {behind} of {ran}",
                  "not asked" if claim.transformer is None else
                  "not run" if there is None else str(there),
                  statistics.verdict(difference, there)))
  header = ("claim", "source", "primary cell", "difference", "the arena", "for : against",
            "transformer, staleness 8", "both instruments")
  return markdown_table(header, lines)


def says(claim: Claim, difference: statistics.Difference | None) -> str:
  """Returns what the primary cell says of a claim."""
  if difference is None:
    return "-"
  if claim.sign == 0:
    return "differs" if difference.sign else "no difference seen"
  return {1: "agrees", -1: "contradicts", 0: "not decided"}[difference.sign * claim.sign]


def contradictions() -> str:
  """Returns the claims on which the instruments differ, then those that the arena contradicts."""
  there = transformer.differences()
  opposed = [f"- **The instruments differ** on: {claim.text} ({claim.source}). Arena "
             f"{primaries()[claim.text]}, transformer {there[claim.text]}" for claim in CLAIMS
             if statistics.contradicts(primaries().get(claim.text), there.get(claim.text))]
  reversals = [f"- {claim.text} ({claim.source}): {primaries()[claim.text]}" for claim in CLAIMS
               if says(claim, primaries().get(claim.text)) == "contradicts"]
  none = ["- None of the published claims is reversed in its primary cell."]
  questions = sum(claim.transformer is not None for claim in CLAIMS)
  return "\n".join([*opposed, *(reversals or none)]) + (
      f"\n\nThe transformer's table answers {len(there)} of the {questions} claims that it is "
      f"asked; the two decide for different sides on {len(opposed)}.\n")
