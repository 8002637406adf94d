"""The atlas: one picture of what every registered estimator does to a token's gradient.

`draw()` is all that a notebook needs. `experiments/atlas/README.md` says how to read the picture.
"""

import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from jaxrl_llm.analysis.coefficients import POSITIONS, SPAN, coefficients
from jaxrl_llm.config import ConfigError, EstimatorConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.reporting.plots import INK

FAMILIES = {
    "no ratio": ("reinforce", "dro"),
    "token ratio": ("ppo", "sapo", "cispo", "m2po"),
    "token ratio, probability bound": ("dppo_tv", "dppo_kl", "cppo"),
    "prefix ratio": ("minpro", "ctpo_geomean", "ctpo"),
    "row ratio": ("gspo", "gmpo", "seq_is", "topr", "vespo"),
}
OTHERS = "further estimators"  # of plugins
CELLS = 161  # along an axis; odd, so that 0 is the middle of a cell
LINEAR = 0.01  # nats: the axes are linear within it and logarithmic beyond
TICKS = (-1.0, -0.1, 0.0, 0.1, 1.0)
LIMITS = (0.1, 10.0)  # of the colours; weights beyond have the colour of the limit
COLOURS = colormaps["RdBu_r"]
NONE = {"facecolor": "#c9c9c9", "edgecolor": "#8c8c8c", "hatch": "////", "linewidth": 0.0}
REVERSED = "#000000"
QUIET, HEADING = "#777777", "#0b4f8a"

# Inches.
SIDE, STRIP, GAP, LEFT, TITLE, BELOW = 1.06, 0.15, 0.06, 0.52, 0.5, 0.26
FAMILY, HEADER, MARGIN, KEY = 0.36, 1.52, 0.3, 4.3

Path = str | os.PathLike | BinaryIO
Methods = Sequence[str] | Mapping[str, EstimatorConfig] | None


class Picture(Figure):
  """A figure that a notebook shows by itself, whatever its backend."""

  def _repr_png_(self) -> bytes:
    stream = io.BytesIO()
    self.savefig(stream, format="png", dpi=100)
    return stream.getvalue()


@dataclasses.dataclass(frozen=True)
class Place:
  """Something to draw: its place, in inches from the left and from the top, and its label.

  `family` is set where the label is a heading of a family; else it is a method's.
  """

  left: float
  top: float
  label: str
  family: bool = False


def configs(methods: Methods = None) -> dict[str, EstimatorConfig]:
  """Returns label to config: of all registered estimators, of some names, or as they were given."""
  if isinstance(methods, Mapping):
    return dict(methods)
  if isinstance(methods, str):
    raise ConfigError(f"atlas of {methods!r}: a list of names was expected. Fix: [{methods!r}].")
  return {name: EstimatorConfig(name) for name in methods or estimators.names()}


def families(methods: Mapping[str, EstimatorConfig]) -> dict[str, list[str]]:
  """Returns family to the labels of its methods, without empty families.

  An estimator that no family names, as one of a plugin, is among the OTHERS.
  """
  found = {family: [label for name in names for label, cfg in methods.items() if cfg.name == name]
           for family, names in FAMILIES.items()}
  known = {name for names in FAMILIES.values() for name in names}
  found[OTHERS] = [label for label, cfg in methods.items() if cfg.name not in known]
  return {family: labels for family, labels in found.items() if labels}


def axis(cells: int = CELLS) -> np.ndarray:
  """Returns the log-ratios, nats, in the middle of each cell along an axis; one of them is 0."""
  edge = position_of(SPAN)
  return LINEAR * np.sinh((np.arange(cells) - cells // 2) * (2 * edge / cells))


def position_of(log_ratio):
  """Returns where a log-ratio lies on an axis."""
  return np.arcsinh(np.asarray(log_ratio, np.float64) / LINEAR)


def draw(methods: Methods = None, path: Path | None = None, *, positions: Sequence[int] = POSITIONS,
         cells: int = CELLS) -> Picture:
  """Draws the coefficients of estimators, families side by side, in one colour scale.

  Args:
    methods: names, drawn with their default numbers; or label to EstimatorConfig. None: every
      registered estimator, those of loaded plugins included.
    path: file, or binary stream, that receives a PNG; None: none is written.
    positions: the t's, ascending.
    cells: of a panel along each axis, odd.

  Returns:
    The figure; a notebook shows it if it is the last value of a cell.

  Raises:
    ConfigError: see `coefficients`; or no methods, even `cells`, or positions below 1.
  """
  chosen = configs(methods)
  if not chosen or cells % 2 == 0 or not positions or min(positions) < 1:
    raise ConfigError(f"atlas of {len(chosen)} methods, positions = {tuple(positions)}, cells = "
                      f"{cells}: at least one method, positions from 1 and an odd number of cells "
                      "are needed")
  places, key, width, height = _layout(families(chosen), _block_width(positions))
  figure = Picture(figsize=(width, height))
  values, points = {}, axis(cells)
  for label, cfg in chosen.items():
    values[label] = coefficients(cfg, points, points, positions=positions)
  for place in places:
    if place.family:
      _family(figure, place, _block_width(positions))
    else:
      _block(figure, place, values[place.label], chosen[place.label], positions)
  _header(figure)
  _key(figure, key)
  if path is not None:
    figure.savefig(path, format="png", dpi=150, pil_kwargs={"optimize": True})
  return figure


def _block_width(positions: Sequence[int]) -> float:
  return LEFT + sum((STRIP if t == 1 else SIDE) + GAP for t in positions)


def _layout(found: Mapping[str, list[str]],
            block: float) -> tuple[list[Place], Place, float, float]:
  """Returns the places of headings and blocks, that of the key, and the figure's size in inches.

  A family goes whole into the first column with room; the tallest column is the largest family.
  """
  most = max(len(labels) for labels in found.values())
  columns: list[list[tuple[str, list[str]]]] = []
  for family, labels in found.items():
    fits = (c for c in columns if sum(len(names) for _, names in c) + len(labels) <= most)
    column = next(fits, None)
    if column is None:
      column = []
      columns.append(column)
    column.append((family, labels))
  tall, places, ends = TITLE + 2 * SIDE + GAP + BELOW, [], []
  for index, column in enumerate(columns):
    left, top = MARGIN + index * (block + 0.1), HEADER
    for family, labels in column:
      places.append(Place(left, top, family, family=True))
      top += FAMILY
      for label in labels:
        places.append(Place(left, top, label))
        top += tall
    ends.append(top)
  shortest = int(np.argmin(ends))
  key = Place(MARGIN + shortest * (block + 0.1), ends[shortest], "key")
  width = max(MARGIN + len(columns) * (block + 0.1), MARGIN + 7.6)
  return places, key, width, max(max(ends), ends[shortest] + KEY) + MARGIN


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
  """Returns axes at a place in inches from the figure's left and top edges."""
  whole_width, whole_height = figure.get_size_inches()
  return figure.add_axes((left / whole_width, 1 - (top + height) / whole_height,
                          width / whole_width, height / whole_height))


def _text(figure: Figure, left: float, top: float, text: str, **style) -> None:
  """Writes text whose upper left corner is at a place in inches."""
  width, height = figure.get_size_inches()
  figure.text(left / width, 1 - top / height, text,
              **({"va": "top", "ha": "left", "color": INK} | style))


def _family(figure: Figure, place: Place, block: float) -> None:
  _text(figure, place.left, place.top, place.label, fontsize=11, fontweight="bold",
        color=HEADING)
  width, height = figure.get_size_inches()
  line = 1 - (place.top + 0.24) / height
  ends = [place.left / width, (place.left + block - GAP) / width]
  figure.add_artist(Line2D(ends, [line, line], color=HEADING, lw=0.8))


def _block(figure: Figure, place: Place, values: np.ndarray, cfg: EstimatorConfig,
           positions: Sequence[int]) -> None:
  """Draws one method: a row of panels for A > 0, one for A < 0, a panel for each position."""
  left = place.left + LEFT
  _text(figure, left, place.top, place.label, fontsize=10, fontweight="bold")
  _text(figure, left, place.top + 0.19, _numbers(cfg), fontsize=5.6, color=QUIET)
  for row, sign in enumerate(("A > 0", "A < 0")):
    top = place.top + TITLE + row * (SIDE + GAP)
    x = left
    for column, t in enumerate(positions):
      width = STRIP if t == 1 else SIDE
      axes = _axes(figure, x, top, width, SIDE)
      _panel(axes, values[row, column], strip=t == 1)
      axes.tick_params(labelleft=column == 0, labelbottom=row == 1 and t > 1)
      if column == 0:
        axes.set_ylabel(sign, fontsize=8, color=INK, labelpad=1)
      if row == 0:
        axes.set_title(f"t = {t}", fontsize=6.5, color=INK, pad=2)
      x += width + GAP


def _numbers(cfg: EstimatorConfig) -> str:
  """Returns the numbers of a method in one line, such as "clip_low=0.2  clip_high=none"."""
  numbers = dataclasses.asdict(estimators.resolve(cfg))
  shown = {name: f"{value:g}" if isinstance(value, float) else value
           for name, value in numbers.items()}
  return "  ".join(f"{n}={'none' if v is None else v}" for n, v in shown.items())


def _panel(axes: Axes, values: np.ndarray, *, strip: bool) -> None:
  """Draws [S, K] coefficients: the prefix sum to the right, the token's log-ratio upwards."""
  edge = float(position_of(SPAN))
  extent = (-1.0, 1.0, -edge, edge) if strip else (-edge, edge, -edge, edge)
  image = values[:1].T if strip else values.T
  axes.patch.set(**NONE)
  look = {"origin": "lower", "extent": extent, "aspect": "auto", "interpolation": "nearest"}
  positive = np.ma.masked_where(image <= 0, image)
  axes.imshow(positive, cmap=COLOURS, norm=LogNorm(*LIMITS, clip=True), **look)
  if np.any(image < 0):
    negative = np.zeros((*image.shape, 4))
    negative[..., 3] = image < 0
    axes.imshow(negative, **look)
  _ticks(axes, strip)


def _ticks(axes: Axes, strip: bool) -> None:
  labels = [f"{x:g}".replace("-", "−").replace("0.", ".") for x in TICKS]
  axes.set_yticks(position_of(TICKS), labels)
  axes.set_xticks([] if strip else position_of(TICKS), [] if strip else labels)
  axes.xaxis.set_minor_locator(NullLocator())
  axes.tick_params(length=1.8, width=0.5, pad=1.2, labelsize=5.2, color=QUIET, labelcolor=INK)
  for spine in axes.spines.values():
    spine.set(linewidth=0.5, color=QUIET)


def _header(figure: Figure) -> None:
  """Draws the title, the colour bar and the two further signs."""
  _text(figure, MARGIN, 0.2, "Atlas of estimators", fontsize=17, fontweight="bold")
  _text(figure, MARGIN, 0.58, "The weight of a token's gradient $A\\,\\nabla\\log\\pi(a_t)$ under each "
        "estimator with its default numbers. REINFORCE is 1 everywhere.", fontsize=9.5)
  axes = _axes(figure, MARGIN, 0.9, 4.4, 0.14)
  bar = figure.colorbar(ScalarMappable(LogNorm(*LIMITS), COLOURS), cax=axes,
                        orientation="horizontal", extend="both", extendfrac=0.03)
  ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10)
  bar.set_ticks(ticks, labels=[f"{x:g}" for x in ticks])
  bar.ax.xaxis.set_minor_locator(NullLocator())
  bar.ax.tick_params(labelsize=7.5, length=2.5, color=QUIET, labelcolor=INK)
  bar.outline.set_linewidth(0.5)
  width, height = figure.get_size_inches()
  signs = [Patch(label="no gradient", **NONE), Patch(label="reversed sign", color=REVERSED)]
  figure.legend(handles=signs, loc="upper left", ncols=2, frameon=False, fontsize=8.5,
                bbox_to_anchor=((MARGIN + 4.6) / width, 1 - 0.81 / height), labelcolor=INK,
                handlelength=2.4, handleheight=1.2)


def _key(figure: Figure, place: Place) -> None:
  """Draws an empty panel that says what its axes are, and where two kinds of rows lie."""
  left, side = place.left + LEFT, 2 * SIDE
  _text(figure, place.left, place.top, "How to read a panel", fontsize=11, fontweight="bold",
        color=HEADING)
  axes = _axes(figure, left, place.top + 0.36, side, side)
  edge = float(position_of(SPAN))
  axes.set(xlim=(-edge, edge), ylim=(-edge, edge))
  own = axis(401)
  axes.plot(position_of(own), position_of(own), color="#d55e00", lw=1.2)
  axes.plot(position_of(10 * own), position_of(own), color="#009e73", lw=1.2)
  axes.text(-0.2, 2.4, "only this\ntoken moved", color="#d55e00", fontsize=6.5, ha="right")
  axes.text(1.4, -1.2, "all 10 tokens\nmoved alike", color="#009e73", fontsize=6.5, va="top")
  axes.text(0, edge - 0.3, "token more likely than under the anchor", ha="center", va="top",
            fontsize=6, color=QUIET)
  axes.text(0, 0.3 - edge, "token less likely", ha="center", va="bottom", fontsize=6, color=QUIET)
  _ticks(axes, strip=False)
  axes.set_xlabel("Lₜ, prefix sum: log-ratio of the row up to and\nincluding the token, nats",
                  fontsize=6.5, color=INK, labelpad=1.5)
  axes.set_ylabel("lₜ, log-ratio of the token, nats", fontsize=6.5, color=INK, labelpad=1.5)
  _text(figure, place.left, place.top + 0.36 + side + 0.5, _EXPLANATION, fontsize=7.2,
        linespacing=1.35)


_EXPLANATION = """\
Level bands: the weight reads the token itself.
Upright bands: it reads the sum up to the token.
Strip: $t = 1$, where both are the same.
The token is the last of its row of $t$ tokens. The others
share the rest of the sum evenly. Each row is an optimizer
batch of its own. A token's probability has gone from
0.22 $e^{-l/2}$ (anchor) to 0.22 $e^{l/2}$ (current policy).
Axes: up to ±3 nats, linear within ±0.01, then logarithmic."""
