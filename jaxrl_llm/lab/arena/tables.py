"""Tables of cells: tuned returns, paired differences and their verdicts."""

from collections.abc import Iterable, Sequence

import numpy as np

from jaxrl_llm.config import ConfigError
from jaxrl_llm.lab import statistics
from jaxrl_llm.lab.arena.records import (
  FALLEN,
  HELD,
  Cell,
  best_step,
  frontier,
  tuned,
)
from jaxrl_llm.reporting.tables import markdown_table


class Table(str):
  """A table in Markdown, which a notebook renders."""

  def _repr_markdown_(self) -> str:
    return str(self)


def interval(values: Iterable[float], digits: int = 2) -> str:
  """Returns "mean ± half the width" of the bootstrap interval over seeds."""
  values = np.asarray(list(values), float)
  low, high = statistics.interval(values)
  return f"{values.mean():.{digits}f} ± {(high - low) / 2:.{digits}f}"


def summary(cells: Sequence[Cell]) -> Table:
  """Returns a line for each cell, at its best step; ± is 95 %, bootstrap over seeds."""
  header = ("method", "age", "noise", "best step", "return", "mean over the run", "frontier",
            f"ends >= {HELD}", f"fell > {FALLEN}", "dropped")
  lines = []
  for cell in cells:
    step, final = best_step(cell), tuned(cell)
    reach = np.log(frontier(cell))
    fell = np.mean(tuned(cell, "best") - final > FALLEN)
    lines.append((cell.method, cell.age, f"{cell.noise:g}", f"{cell.steps[step]:g}",
                  interval(final), interval(tuned(cell, "mean")), f"{np.exp(reach.mean()):.3f}",
                  f"{np.mean(final >= HELD):.0%}", f"{fell:.0%}", f"{cell.dropped[step]:.1%}"))
  return Table(markdown_table(header, _without_constant_noise(header, lines)[1])
               if not lines else markdown_table(*_without_constant_noise(header, lines)))


def _without_constant_noise(header: tuple, lines: list[tuple]):
  """Returns header and lines without the column of noise, if there was none."""
  if any(line[2] != "0" for line in lines):
    return header, lines
  return header[:2] + header[3:], [line[:2] + line[3:] for line in lines]


def difference(first: Cell, second: Cell, kind: str = "final") -> np.ndarray:
  """Returns first less second on the automata that both ran, [N], each at its best step."""
  common = sorted(set(first.seeds) & set(second.seeds))
  if len(common) < 2:
    raise ConfigError(f"{first.method} and {second.method} have {len(common)} seeds in common")
  return np.asarray([
      tuned(first, kind)[first.seeds.index(seed)] - tuned(second, kind)[second.seeds.index(seed)]
      for seed in common])


def paired(cells: Sequence[Cell], reference: str) -> Table:
  """Returns differences to a method in the same setting at the same age, Holm over the table."""
  pairs = []
  for cell in cells:
    others = [o for o in cells if o.method == reference and o is not cell
              and (o.setting, o.age, o.noise) == (cell.setting, cell.age, cell.noise)]
    pairs += [(cell, other) for other in others if cell.method != reference]
  if not pairs:
    raise ConfigError(f"paired({reference!r}): no other method ran beside it; there are "
                      f"{', '.join(sorted({cell.method for cell in cells}))}")
  every = [difference(*pair) for pair in pairs]
  decided = statistics.holm([statistics.p_value(values) for values in every])
  lines = [(cell.method, cell.age, interval(values, 3), verdict(values, sure))
           for (cell, _), values, sure in zip(pairs, every, decided, strict=True)]
  return Table(markdown_table(("method", "age", f"return less that of {reference}", "verdict"),
                              lines))


def verdict(values: np.ndarray, decided: bool) -> str:
  """Returns the verdict on a paired difference."""
  if not decided:
    return "not decided"
  return "ahead" if values.mean() > 0 else "behind"
