"""What pages say of the arena in sentences, around the tables, is what its results say."""

import dataclasses
import sys
from pathlib import Path

import numpy as np

from experiments.tables_lib import page_parts, statistics
from experiments.tables_lib.arena import records, tables

ROOT = Path(__file__).parents[4]
TASKS = ("warm", "ending")


def prose(path: Path) -> str:
  return " ".join(path.read_text().split())


def order(page, task: str) -> list[str]:
  """The methods by their mean return at the end, 256 tokens, staleness 64, the best first."""
  ends = {cell.method: np.mean(records.tuned(cell)) for cell in page.cells(f"{task}_256")
          if cell.age == 64}
  return sorted(ends, key=ends.get, reverse=True)


def ranks(page) -> list[str]:
  """What misleads: which part of the order carries over from one task to the other."""
  warm, ending = (order(page, task) for task in TASKS)
  places = [[names.index(name) for name in sorted(warm)] for names in (warm, ending)]
  vespo, grpo = ([names.index(name) + 1 for names in (warm, ending)] for name in ("vespo", "grpo"))
  top = {"cispo": "CISPO", "kpop": "KPop"}
  return [f"{' and '.join(top.get(name, name) for name in warm[:2])} are first and second on both",
          f"{' and '.join(top.get(name, name) for name in ending[:2])} are first and second on",
          f"GRPO is {'last' if grpo[1] == len(ending) else grpo[1]} of {len(ending)} on `ending` "
          f"there and {grpo[0]}th on `warm`, VESPO {vespo[1]}th and "
          f"{'last' if vespo[0] == len(warm) else vespo[0]}.",
          f"rank correlation of the two columns is {np.corrcoef(*places)[0, 1]:.2f}.".replace(
              " 0.", " .")]


def long_completions(page) -> list[str]:
  """Where CTPO stands against CISPO on the longest completions of the map."""
  ends = []
  for task in TASKS:
    here = {cell.method: cell for cell in page.cells("fresh")
            if (cell.setting["task"], cell.setting["length"], cell.age) == (task, 1024, 16)}
    ends.append(statistics.bootstrap(tables.difference(here["ctpo"], here["cispo"])).high)
  return ["at 1,024 tokens it is behind `cispo` here", "behind `cispo` at 1,024 tokens here",
          "at 1,024 tokens `ctpo` is behind `cispo` here"] if max(ends) < 0 else ["not behind"]


def baselines(page) -> list[str]:
  """What the page of baselines says of OTB in the arena."""
  claims, verdicts = sys.modules["claims"], sys.modules["verdicts"]
  text = "OTB with 4 as good as RLOO with 32"
  gaps = [-value + claims.MARGIN for value in page.differences()[text]["end"][:3]]
  (claim,) = (claim for claim in claims.CLAIMS if claim.text == text)
  (near,) = (np.mean(tables.difference(*pair)) for pair in verdicts.within(claim)
             if pair[0].setting["task"] == "warm")
  loses = "loses {:.3f} ({:.3f} to {:.3f}) to RLOO in groups of 32, {:.3f} on the one".format(
      *gaps, -near)
  return [loses.replace("0.", ".")]


def slopes(page) -> list[str]:
  """What the page of positions says of the spread in the arena."""
  (table,) = page_parts.tables(page.drift_table())
  out = []
  for task in TASKS:
    of_task = [float(row[-1]) for row in table.rows
               if row[0] == f"{task} 256" and row[2] in ("4", "16")]
    out.append(f"{min(of_task):.2f} to {max(of_task):.2f}")
  return [f"slope is {out[0]} at staleness 4 and 16;", f"slopes are {out[1]}."]


STATED = {"experiments/arena/README.md": ranks, "experiments/baselines/README.md": baselines,
          "experiments/position/README.md": slopes,
          "jaxrl_llm/objective/README.md": long_completions}


def missing(page) -> list[tuple[str, str]]:
  """(page, what the results say and it does not)."""
  return [(name, text) for name, sentences in STATED.items() for text in sentences(page)
          if text not in prose(ROOT / name)]


def test_sentences_around_the_tables_are_those_of_the_results(page):
  assert missing(page) == []


def test_other_results_are_other_sentences(page, with_cells):
  """Half of the return of CISPO and of groups of 4, and another spread, make a sentence of each
  page false.
  """
  with_cells(lambda cell: dataclasses.replace(
      cell, spread=np.sqrt(cell.spread).tolist(),
      final=(np.asarray(cell.final) / (1 + (cell.method in ("cispo", "otb_4")))).tolist()))
  assert {name for name, _ in missing(page)} == set(STATED)
