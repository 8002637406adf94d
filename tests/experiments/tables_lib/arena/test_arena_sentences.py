"""What pages say of the arena in sentences, around the tables, is what its results say."""

import dataclasses
import sys
from pathlib import Path

import numpy as np

from experiments.tables_lib import page_parts, statistics
from experiments.tables_lib.arena import records, tables

ROOT = Path(__file__).parents[4]
METHODS = ROOT / "jaxrl_llm" / "objective" / "README.md"
TASKS = ("warm", "ending")
SHARES = ("None", "A fifth", "Two fifths", "Three fifths", "Four fifths", "All")


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


def map_s_range(page) -> list[str]:
  """The captions: staleness and tokens of the map, and the intervals that leave the figure."""
  cells = [cell for table in sys.modules["claims"].MAP for cell in page.cells(table)]
  ages, lengths = {cell.age for cell in cells}, {cell.setting["length"] for cell in cells}
  forest = sys.modules["forest"]
  wide = [key for key, gap in forest.rows().items()
          if key[0] in forest.METHODS and max(-gap.low, gap.high) > forest.WIDEST]
  return [f"completions that are {min(ages)} to {max(ages)} iterations old",
          f"two tasks, {min(lengths)} to {max(lengths):,} tokens",
          {1: "One interval runs out of the frame"}.get(len(wide), f"{len(wide)} intervals")]


def optimism(page) -> list[str]:
  """By how much the seeds that choose a rate flatter a method, at most."""
  (table,) = page_parts.tables(page.optimism_table())
  drops = [page_parts.numbers(row[1])[0] - page_parts.numbers(row[2])[0] for row in table.rows]
  return [f"by up to {max(drops):.2f} in one cell".replace("0.", ".")]


def compilation(page) -> list[str]:
  """The share of the time that compilation takes."""
  (table,) = page_parts.tables(page.time_table())
  compiled, ran = (float(table.rows[-1][i]) for i in (2, 3))
  return [f"{SHARES[round(5 * compiled / (compiled + ran))]} of the time are compilation"]


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


STATED = {"arena/README.md": (ranks, map_s_range, optimism), "arena/details.md": (compilation,),
          "baselines/README.md": (baselines,), "position/README.md": (slopes,),
          "../jaxrl_llm/objective/README.md": (long_completions,)}


def missing(page) -> list[tuple]:
  """What the results say and a page does not, beside the function that says it."""
  return [(of, text) for name, functions in STATED.items() for of in functions for text in of(page)
          if text not in prose(ROOT / "experiments" / name)]


def test_sentences_around_the_tables_are_those_of_the_results(page):
  assert missing(page) == []
  assert map_s_range(page)[2] in prose(ROOT / "README.md")


def test_other_results_are_other_sentences(page, monkeypatch):
  """Half of the return of CISPO, of groups of 4 and of fresh seeds without a ratio, another spread,
  quick compilation, and no staleness of 4 make a sentence of each kind false.
  """
  real = records.read

  def half(cell) -> bool:
    return cell.method in ("cispo", "otb_4") or (cell.method == "none" and cell.seeds[0] >= 128)

  def other(path):
    return [dataclasses.replace(
        cell, spread=np.sqrt(cell.spread).tolist(), seconds=(cell.seconds[0] / 9, cell.seconds[1]),
        final=(np.asarray(cell.final) / (2 if half(cell) else 1)).tolist())
            for cell in real(path) if cell.age != 4]

  verdicts = sys.modules["verdicts"]
  verdicts.cells.cache_clear()
  verdicts.differences.cache_clear()
  monkeypatch.setattr(records, "read", other)
  wrong = {of for of, _ in missing(page)}
  verdicts.cells.cache_clear()
  verdicts.differences.cache_clear()
  assert wrong == {of for functions in STATED.values() for of in functions}
