"""Pictures of cells."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.report.plots import INK
from experiments.tables_lib.arena.records import HELD, Cell
from jaxrl_llm.config import ConfigError

COLUMNS = 5


class Picture(Figure):
  """A figure that a notebook shows as a cell's result."""

  def _repr_png_(self) -> bytes:
    stream = io.BytesIO()
    self.savefig(stream, format="png", dpi=100)
    return stream.getvalue()


def phase(cells: Sequence[Cell], path=None, title: str = "") -> Picture:
  """Plots a panel for each method: learning rate to the right, staleness upwards.

  The colour is the mean final return over the optimum, the text the share of runs that hold.

  Args:
    cells: of one setting, with one noise.
    path: file, or binary stream, that receives a PNG; None: none is written.
  """
  if not cells:
    raise ConfigError("phase diagram of no runs")
  if len({(str(cell.setting), cell.noise) for cell in cells}) > 1:
    raise ConfigError("phase diagram of several settings or noises: choose one")
  names = list(dict.fromkeys(cell.method for cell in cells))
  ages = sorted({cell.age for cell in cells})
  columns = min(COLUMNS, len(names))
  lines = -(-len(names) // columns)
  figure = Picture(figsize=(2.5 * columns + 1, (0.34 * len(ages) + 0.85) * lines + 0.7),
                   layout="constrained")
  axes = figure.subplots(lines, columns, squeeze=False)
  for index, place in enumerate(axes.flat):
    if index >= len(names):
      place.set_axis_off()
      continue
    image = _panel(place, [c for c in cells if c.method == names[index]], ages)
    place.set_title(names[index], fontsize=9, color=INK)
  figure.colorbar(image, ax=axes, shrink=0.8, label="final return / optimum")
  setting = cells[0].setting
  runs = f"{len(cells[0].seeds)} runs that end at {HELD} or above"
  figure.suptitle(title or f"{setting['task']}, completions of {setting['length']} tokens: return, "
                  f"and share of {runs}", fontsize=10)
  figure.supxlabel("learning rate", fontsize=9)
  figure.supylabel("staleness, iterations", fontsize=9)
  if path is not None:
    figure.savefig(path, format="png", dpi=130, pil_kwargs={"optimize": True})
  return figure


def _panel(place, cells: Sequence[Cell], ages: Sequence[int]):
  steps = cells[0].steps
  values = np.full((len(ages), len(steps)), np.nan)
  stable_share = values.copy()
  for cell in cells:
    line = ages.index(cell.age)
    values[line] = np.mean(cell.final, 1)
    stable_share[line] = np.mean(np.asarray(cell.final) >= HELD, 1)
  image = place.imshow(values, origin="lower", aspect="auto", vmin=0.15, vmax=1.0)
  for (line, column), value in np.ndenumerate(values):
    if np.isfinite(value):
      place.text(column, line, f"{stable_share[line, column]:.0%}", ha="center", va="center",
                 fontsize=6.5,
                 color="white" if value < 0.6 else "black")
  place.set_xticks(range(len(steps)), [f"{step:g}".lstrip("0") for step in steps])
  place.set_yticks(range(len(ages)), list(map(str, ages)))
  place.tick_params(labelsize=7, length=2)
  return image


def lines(series: dict[str, tuple[Sequence[float], Sequence[float]]], axes: tuple[str, str],
          path=None, *, log: bool = True) -> Picture:
  """Plots curves by name, x logarithmic; `axes` are the labels of x and y."""
  figure = Picture(figsize=(6.4, 3.6), layout="constrained")
  place = figure.subplots()
  for name, (x, y) in series.items():
    place.plot(x, y, marker="o", markersize=3, linewidth=1.2, label=name)
  if log:
    place.set_xscale("log")
  place.set_xlabel(axes[0], color=INK)
  place.set_ylabel(axes[1], color=INK)
  place.legend(fontsize=7, frameon=False, ncols=2)
  if path is not None:
    figure.savefig(path, format="png", dpi=130, pil_kwargs={"optimize": True})
  return figure
