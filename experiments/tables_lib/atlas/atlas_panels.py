"""The parts of the atlas: axes, a panel of coefficients, the header and the key.

Places are in inches from the figure's left and top edges.
"""

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from experiments.report.plots import INK
from experiments.tables_lib.atlas.coefficients import LOG_PROBABILITY, SPAN

LINEAR = 0.01  # nats: the axes are linear within it and logarithmic beyond
TICKS = (-1.0, -0.1, 0.0, 0.1, 1.0)
LIMITS = (0.1, 10.0)  # of the colours; weights beyond have the colour of the limit
COLOURS = colormaps["RdBu_r"]
NONE = {"facecolor": "#c9c9c9", "edgecolor": "#8c8c8c", "hatch": "////", "linewidth": 0.0}
REVERSED = "#000000"
QUIET, HEADING = "#777777", "#0b4f8a"

SIDE, LEFT, MARGIN = 1.06, 0.52, 0.3  # inches: of a panel, of its labels, of the page


def axis(cells: int) -> np.ndarray:
  """Returns the log-ratios, nats, in the middle of each cell along an axis; one of them is 0."""
  edge = position_of(SPAN)
  return LINEAR * np.sinh((np.arange(cells) - cells // 2) * (2 * edge / cells))


def position_of(log_ratio):
  """Returns where a log-ratio lies on an axis."""
  return np.arcsinh(np.asarray(log_ratio, np.float64) / LINEAR)


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
  """Returns axes at a place in inches from the figure's left and top edges."""
  figure_width, figure_height = figure.get_size_inches()
  return figure.add_axes((left / figure_width, 1 - (top + height) / figure_height,
                          width / figure_width, height / figure_height))


def text_at(figure: Figure, left: float, top: float, text: str, **style) -> None:
  """Writes text whose upper left corner is at a place in inches."""
  width, height = figure.get_size_inches()
  figure.text(left / width, 1 - top / height, text,
              **({"va": "top", "ha": "left", "color": INK} | style))


def panel(axes: Axes, values: np.ndarray, *, strip: bool) -> None:
  """Plots [S, K] coefficients: the prefix sum to the right, the token's log-ratio upwards."""
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
  ticks(axes, strip)


def ticks(axes: Axes, strip: bool) -> None:
  labels = [f"{x:g}".replace("-", "−").replace("0.", ".") for x in TICKS]
  axes.set_yticks(position_of(TICKS), labels)
  axes.set_xticks([] if strip else position_of(TICKS), [] if strip else labels)
  axes.xaxis.set_minor_locator(NullLocator())
  axes.tick_params(length=1.8, width=0.5, pad=1.2, labelsize=5.2, color=QUIET, labelcolor=INK)
  for spine in axes.spines.values():
    spine.set(linewidth=0.5, color=QUIET)


def header(figure: Figure) -> None:
  """Plots the title, the colour bar and the two further signs."""
  text_at(figure, MARGIN, 0.2, "Atlas of estimators", fontsize=17, fontweight="bold")
  text_at(figure, MARGIN, 0.58, "The weight of a token's gradient $A\\,\\nabla\\log\\pi(a_t)$ "
          "under each estimator. REINFORCE is 1 everywhere.", fontsize=9.5)
  axes = axes_at(figure, MARGIN, 0.9, 4.4, 0.14)
  bar = figure.colorbar(ScalarMappable(LogNorm(*LIMITS), COLOURS), cax=axes,
                        orientation="horizontal", extend="both", extendfrac=0.03)
  marks = (0.1, 0.2, 0.5, 1, 2, 5, 10)
  bar.set_ticks(marks, labels=[f"{x:g}" for x in marks])
  bar.ax.xaxis.set_minor_locator(NullLocator())
  bar.ax.tick_params(labelsize=7.5, length=2.5, color=QUIET, labelcolor=INK)
  bar.outline.set_linewidth(0.5)
  width, height = figure.get_size_inches()
  signs = [Patch(label="no gradient", **NONE), Patch(label="reversed sign", color=REVERSED)]
  figure.legend(handles=signs, loc="upper left", ncols=2, frameon=False, fontsize=8.5,
                bbox_to_anchor=((MARGIN + 4.6) / width, 1 - 0.81 / height), labelcolor=INK,
                handlelength=2.4, handleheight=1.2)


def key(figure: Figure, left: float, top: float) -> None:
  """Plots an empty panel that says what its axes are, and where two kinds of rows lie."""
  side = 2 * SIDE
  text_at(figure, left, top, "How to read a panel", fontsize=11, fontweight="bold", color=HEADING)
  axes = axes_at(figure, left + LEFT, top + 0.36, side, side)
  edge = float(position_of(SPAN))
  axes.set(xlim=(-edge, edge), ylim=(-edge, edge))
  log_ratios = axis(401)
  axes.plot(position_of(log_ratios), position_of(log_ratios), color="#d55e00", lw=1.2)
  axes.plot(position_of(10 * log_ratios), position_of(log_ratios), color="#009e73", lw=1.2)
  axes.text(-0.2, 2.4, "only this\ntoken moved", color="#d55e00", fontsize=6.5, ha="right")
  axes.text(1.4, -1.2, "all 10 tokens\nmoved alike", color="#009e73", fontsize=6.5, va="top")
  axes.text(0, edge - 0.3, "token more likely than under the anchor", ha="center", va="top",
            fontsize=6, color=QUIET)
  axes.text(0, 0.3 - edge, "token less likely", ha="center", va="bottom", fontsize=6, color=QUIET)
  ticks(axes, strip=False)
  axes.set_xlabel("Lₜ, prefix sum: log-ratio of the row up to and\nincluding the token, nats",
                  fontsize=6.5, color=INK, labelpad=1.5)
  axes.set_ylabel("lₜ, log-ratio of the token, nats", fontsize=6.5, color=INK, labelpad=1.5)
  text_at(figure, left, top + 0.36 + side + 0.5, _EXPLANATION, fontsize=7.2, linespacing=1.35)


_MIDDLE = f"{np.exp(LOG_PROBABILITY):.2g}"
_EXPLANATION = f"""\
Level bands: the weight reads the token itself.
Upright bands: it reads the sum up to the token.
Strip: $t = 1$, where both are the same.
The token is the last of its row of $t$ tokens. The others
share the rest of the sum evenly. Each row is an optimizer
batch of its own. A token's probability has gone from
{_MIDDLE} $e^{{-l/2}}$ (anchor) to {_MIDDLE} $e^{{l/2}}$ (current policy).
Axes: up to ±{SPAN:g} nats, linear within ±{LINEAR:g}, then logarithmic."""
