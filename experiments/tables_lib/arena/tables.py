"""Tables of cells: tuned returns, paired differences and their verdicts."""

from collections.abc import Iterable, Sequence

import numpy as np

from experiments.tables_lib import statistics
from experiments.tables_lib.arena.records import (
  FALLEN,
  HELD,
  Cell,
  best_step,
  frontier,
  tuned,
)
from experiments.tables_lib.compare import half_width
from jaxrl_llm.config import ConfigError
from jaxrl_llm.reporting.tables import markdown_table


class Table(str):
  """A table in Markdown, which a notebook renders."""

  def _repr_markdown_(self) -> str:
    return str(self)


def spread(values: Iterable[float], digits: int = 2) -> str:
  """Returns "mean ± half the width" of the 95 % t interval over seeds."""
  values = np.asarray(list(values), float)
  return f"{values.mean():.{digits}f} ± {half_width(values):.{digits}f}"


def summary(cells: Sequence[Cell]) -> Table:
  """Returns a line for each cell, at its best rate; ± is the 95 % t interval over seeds."""
  header = ("method", "staleness", "noise", "best rate", "return", "mean over the run", "frontier",
            f"ends >= {HELD}", f"fell > {FALLEN}", "dropped")
  lines = []
  for cell in cells:
    step, final = best_step(cell), tuned(cell)
    reach = np.log(frontier(cell))
    fell = np.mean(tuned(cell, "best") - final > FALLEN)
    lines.append((cell.method, cell.age, f"{cell.noise:g}", f"{cell.steps[step]:g}",
                  spread(final), spread(tuned(cell, "mean")), f"{np.exp(reach.mean()):.3f}",
                  f"{np.mean(final >= HELD):.0%}", f"{fell:.0%}", f"{cell.dropped[step]:.1%}"))
  return Table(markdown_table(*_without_constant_noise(header, lines)))


def _without_constant_noise(header: tuple, lines: list[tuple]):
  """Returns header and lines without the column of noise, if there was none."""
  if any(line[2] != "0" for line in lines):
    return header, lines
  return header[:2] + header[3:], [line[:2] + line[3:] for line in lines]


def difference(first: Cell, second: Cell, kind: str = "final") -> np.ndarray:
  """Returns first minus second on the automata that both ran, [N], each at its best rate."""
  values = statistics.paired(*(dict(zip(cell.seeds, tuned(cell, kind), strict=True))
                               for cell in (first, second)))
  if len(values) < 2:
    raise ConfigError(f"{first.method} and {second.method} have {len(values)} seeds in common")
  return values


def paired_differences(cells: Sequence[Cell],
                       reference: str) -> dict[tuple[str, int, float], np.ndarray]:
  """Returns (method, age, noise) to differences to the reference in the same setting."""
  differences = {}
  for cell in cells:
    for baseline in cells:
      if baseline.method == reference != cell.method and (
          baseline.setting, baseline.age, baseline.noise) == (cell.setting, cell.age, cell.noise):
        differences[cell.method, cell.age, cell.noise] = difference(cell, baseline)
  if not differences:
    raise ConfigError(f"paired({reference!r}): no other method ran beside it; there are "
                      f"{', '.join(sorted({cell.method for cell in cells}))}")
  return differences


def paired(cells: Sequence[Cell], reference: str) -> Table:
  """Returns differences to a method in the same setting, with intervals by Holm over the table."""
  corrected = statistics.compare(paired_differences(cells, reference))
  lines = [(name, age, f"{estimate.mean:+.3f}", f"{estimate.low:+.3f} to {estimate.high:+.3f}",
            estimate.count,
            word(estimate)) for (name, age, _), estimate in corrected.items()]
  return Table(markdown_table(("method", "staleness", f"return minus that of {reference}",
                               "95 % over the table", "seeds", "verdict"), lines))


def word(difference: statistics.Difference) -> str:
  """Returns what an interval says."""
  return {1: "ahead", -1: "behind", 0: "not decided"}[difference.sign]
