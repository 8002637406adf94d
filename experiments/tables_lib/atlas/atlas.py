"""The atlas: one picture of what every registered estimator does to a token's gradient.

`draw()` is all that a notebook needs. `experiments/atlas/README.md` says how to read the picture.
"""

import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.report.plots import INK
from experiments.tables_lib.atlas import atlas_panels as panels
from experiments.tables_lib.atlas.coefficients import POSITIONS, coefficients
from jaxrl_llm.config import ConfigError, EstimatorConfig
from jaxrl_llm.objective import estimators

WIDTH = 54  # of a line of a method's numbers, characters
CELLS = 161  # along an axis; odd, so that 0 is the middle of a cell

# Inches.
STRIP, GAP, TITLE, BELOW = 0.15, 0.06, 0.5, 0.26
FAMILY, HEADER, KEY = 0.36, 1.52, 4.3

Path = str | os.PathLike | BinaryIO
Methods = Sequence[str] | Mapping[str, EstimatorConfig] | None


class Picture(Figure):
  """A figure that a notebook shows as a cell's result, whatever its backend."""

  def _repr_png_(self) -> bytes:
    stream = io.BytesIO()
    self.savefig(stream, format="png", dpi=100)
    return stream.getvalue()


@dataclasses.dataclass(frozen=True)
class Place:
  """An item of the figure: its place, in inches from the left and from the top, and its label.

  `family` is set where the label is a heading of a family; else it is a method's.
  """

  left: float
  top: float
  label: str
  family: bool = False


def configs(methods: Methods = None) -> dict[str, EstimatorConfig]:
  """Returns label to config: of all registered estimators that weigh a row by itself, of some
  names, or as they were given.
  """
  if isinstance(methods, Mapping):
    return dict(methods)
  if isinstance(methods, str):
    raise ConfigError(f"atlas of {methods!r}: a list of names was expected. Fix: [{methods!r}].")
  alone = [name for name in estimators.names() if not estimators.spec(name).of_groups]
  return {name: EstimatorConfig(name) for name in (alone if methods is None else methods)}


def families(methods: Mapping[str, EstimatorConfig]) -> dict[str, list[str]]:
  """Returns family to the labels of its methods, without empty families.

  An estimator of a plugin is among `estimators.OTHERS`.

  Raises:
    ConfigError: an unknown name.
  """
  for cfg in methods.values():
    estimators.spec(cfg.name)
  by_family = {family: [label for name in names for label, cfg in methods.items()
                        if cfg.name == name]
               for family, names in estimators.families().items()}
  return {family: labels for family, labels in by_family.items() if labels}


def draw(methods: Methods = None, path: Path | None = None, *, positions: Sequence[int] = POSITIONS,
         cells: int = CELLS) -> Picture:
  """Plots the coefficients of estimators, families side by side, in one colour scale.

  Args:
    methods: names, plotted with their default numbers; or label to EstimatorConfig. None: every
      registered estimator, including loaded plugins' estimators.
    path: file, or binary stream, that receives a PNG; None: none is written.
    positions: the t's, ascending.
    cells: of a panel along each axis, odd.

  Returns:
    The figure; a notebook shows it if it is the last value of a cell.

  Raises:
    ConfigError: see `coefficients`; or no methods, even `cells`, or positions below 1.
  """
  by_label = configs(methods)
  if not by_label or cells % 2 == 0 or not positions or min(positions) < 1:
    raise ConfigError(f"atlas of {len(by_label)} methods, positions = {tuple(positions)}, cells = "
                      f"{cells}: at least one method, positions from 1 and an odd number of cells "
                      "are needed")
  places, key_at, width, height = _layout(families(by_label), _block_width(positions))
  figure = Picture(figsize=(width, height))
  values, points = {}, panels.axis(cells)
  for label, cfg in by_label.items():
    values[label] = coefficients(cfg, points, points, positions=positions)
  for place in places:
    if place.family:
      _family(figure, place, _block_width(positions))
    else:
      _block(figure, place, values[place.label], by_label[place.label], positions)
  panels.header(figure)
  panels.key(figure, key_at.left, key_at.top)
  if path is not None:
    figure.savefig(path, format="png", dpi=150, pil_kwargs={"optimize": True})
  return figure


def _block_width(positions: Sequence[int]) -> float:
  return panels.LEFT + sum((STRIP if t == 1 else panels.SIDE) + GAP for t in positions)


def _layout(families: Mapping[str, list[str]],
            block: float) -> tuple[list[Place], Place, float, float]:
  """Returns the places of headings and blocks, the key's place, and the figure's size in inches.

  A family goes undivided into the first column with room; the tallest column is the largest family.
  """
  tallest = max(len(labels) for labels in families.values())
  columns: list[list[tuple[str, list[str]]]] = []
  for family, labels in families.items():
    fits = (c for c in columns if sum(len(names) for _, names in c) + len(labels) <= tallest)
    column = next(fits, None)
    if column is None:
      column = []
      columns.append(column)
    column.append((family, labels))
  tall, places, ends = TITLE + 2 * panels.SIDE + GAP + BELOW, [], []
  for index, column in enumerate(columns):
    left, top = panels.MARGIN + index * (block + 0.1), HEADER
    for family, labels in column:
      places.append(Place(left, top, family, family=True))
      top += FAMILY
      for label in labels:
        places.append(Place(left, top, label))
        top += tall
    ends.append(top)
  shortest = int(np.argmin(ends))
  key_at = Place(panels.MARGIN + shortest * (block + 0.1), ends[shortest], "key")
  width = max(panels.MARGIN + len(columns) * (block + 0.1), panels.MARGIN + 7.6)
  return places, key_at, width, max(max(ends), ends[shortest] + KEY) + panels.MARGIN


def _family(figure: Figure, place: Place, block: float) -> None:
  panels.text_at(figure, place.left, place.top, place.label, fontsize=11, fontweight="bold",
                 color=panels.HEADING)
  width, height = figure.get_size_inches()
  line = 1 - (place.top + 0.24) / height
  ends = [place.left / width, (place.left + block - GAP) / width]
  figure.add_artist(Line2D(ends, [line, line], color=panels.HEADING, lw=0.8))


def _block(figure: Figure, place: Place, values: np.ndarray, cfg: EstimatorConfig,
           positions: Sequence[int]) -> None:
  """Plots one method: a row of panels for A > 0, one for A < 0, a panel for each position."""
  left = place.left + panels.LEFT
  panels.text_at(figure, left, place.top, place.label, fontsize=10, fontweight="bold")
  panels.text_at(figure, left, place.top + 0.19, _numbers(cfg), fontsize=5.6, color=panels.QUIET)
  for row, sign in enumerate(("A > 0", "A < 0")):
    top = place.top + TITLE + row * (panels.SIDE + GAP)
    x = left
    for column, t in enumerate(positions):
      width = STRIP if t == 1 else panels.SIDE
      axes = panels.axes_at(figure, x, top, width, panels.SIDE)
      panels.panel(axes, values[row, column], strip=t == 1)
      axes.tick_params(labelleft=column == 0, labelbottom=row == 1 and t > 1)
      if column == 0:
        axes.set_ylabel(sign, fontsize=8, color=INK, labelpad=1)
      if row == 0:
        axes.set_title(f"t = {t}", fontsize=6.5, color=INK, pad=2)
      x += width + GAP


def _numbers(cfg: EstimatorConfig) -> str:
  """Returns the numbers of a method, such as "clip_low=0.2  clip_high=none", in at most two lines.

  Items that find no place are left out, and the text ends in dots.
  """
  numbers = dataclasses.asdict(estimators.resolve(cfg))
  hyperparameters = {name: f"{value:g}" if isinstance(value, float) else value
                     for name, value in numbers.items()}
  parts = [f"{n}={'none' if v is None else v}" for n, v in hyperparameters.items()]
  lines = [""]
  for part in parts:
    longer = f"{lines[-1]}  {part}" if lines[-1] else part
    if len(longer) > WIDTH and len(lines) == 2:
      lines[-1] += "  ..."
      break
    if len(longer) > WIDTH:
      lines.append(part)
    else:
      lines[-1] = longer
  return "\n".join(lines)
