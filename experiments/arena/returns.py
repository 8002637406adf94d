"""Tables of returns at the end of a run, on the seeds that chose the learning rates and on fresh
ones.
"""

from claims import MAP
from verdicts import BESIDE_MAP, cells, conditions

from experiments.tables_lib import arena
from experiments.tables_lib.arena import records, tables
from experiments.tables_lib.arena.records import tuned
from jaxrl_llm.reporting.tables import markdown_table

NOT_RUN = "*Not run yet.*\n"
STAR = "\n\\* The best learning rate is the smallest or the largest that ran: a bound from below.\n"


def tuned_table(task: str) -> str:
  """Returns the tuned return of each method on a task, length and staleness as columns."""
  columns: dict[tuple, dict] = {}
  for table in (name for name in MAP if name.startswith(task)):
    for cell in cells(table):
      columns.setdefault((table, cell.age), {})[cell.method] = cell
  names = list(dict.fromkeys(name for column in columns.values() for name in column))
  lines = [(name, *(_spread_at_best(column[name]) if name in column else "-"
                    for column in columns.values())) for name in names]
  header = ("method", *(f"{table.partition('_')[2]}, {age}" for table, age in columns))
  return (markdown_table(header, lines) + STAR) if lines else NOT_RUN


def fresh_table(task: str) -> str:
  """Returns the return of each method on a task at the rate that the map chose, on fresh seeds."""
  here = {(cell.method, cell.setting["length"], cell.age): cell for cell in cells("fresh")
          if cell.setting["task"] == task}
  columns = sorted({(length, age) for _, length, age in here})
  lines = [(name, *(tables.spread(tuned(here[name, *column])) if (name, *column) in here else "-"
                    for column in columns))
           for name in dict.fromkeys(name for name, *_ in here)]
  header = ("method", *(f"{length}, {age}" for length, age in columns))
  return markdown_table(header, lines) if lines else NOT_RUN


def _spread_at_best(cell: arena.Cell) -> str:
  """Returns mean and spread over seeds, with a star where the best rate is an end of the grid."""
  return tables.spread(tuned(cell)) + (" *" if records.at_the_end(cell) else "")


def optimism_table() -> str:
  """Returns the end at the best learning rate, on the seeds that chose it and on further ones."""
  lines = []
  for cell in (cell for name in BESIDE_MAP for cell in cells(name)):
    setting = cell.setting
    chosen = [other for other in cells(f"{setting['task']}_{setting['length']}")
              if (other.method, conditions(other)) == (cell.method, conditions(cell))]
    if (setting["task"], setting["length"], cell.age) == ("warm", 256, 64) and chosen:
      lines.append((cell.method, tables.spread(tuned(chosen[0])), tables.spread(tuned(cell)),
                    f"{cell.seeds[0]} to {cell.seeds[-1]}"))
  header = ("method", "seeds that chose the rate", "further seeds", "which")
  return markdown_table(header, sorted(lines)) if lines else NOT_RUN
