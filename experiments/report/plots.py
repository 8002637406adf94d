"""Figures of one run and of several, without pyplot's global state."""

import io
import os
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, PercentFormatter

from experiments.report.run_folder import RunFolder
from experiments.report.summaries import ACCURACY, HELDOUT, score_of, set_accuracies
from jaxrl_llm.reporting.summary import QUANTILES

# The palette of Okabe and Ito, which colour-blind readers can distinguish, and two more.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#4d4d4d")
DASHES = ("-", "--", ":")
INK, GRID = "#333333", "#e4e4e4"
CLOSE = 0.005  # of the range: lines that are nearer than a line is wide

PANEL = (3.8, 2.7)  # inches of a panel on a page

Series = tuple[np.ndarray, np.ndarray]


def plot_run(run: RunFolder, path: str | os.PathLike | BinaryIO) -> None:
  """Writes one PNG with a panel per quantity that the run logged.

  Args:
    run: the run.
    path: file, or binary stream, that receives the PNG.
  """
  panels = _run_panels(run)
  columns = min(3, len(panels)) if len(panels) != 4 else 2
  rows = -(-len(panels) // columns) if panels else 1
  figure = Figure(figsize=(4.6 * max(1, columns), 3.1 * rows), layout="constrained")
  figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
  if not panels:
    figure.text(0.5, 0.5, "nothing to plot yet", ha="center", color=INK)
  for index, (title, series, plot) in enumerate(panels):
    axes = figure.add_subplot(rows, columns, index + 1)
    plot(axes, series)
    finish_panel(axes, title, legend=len(axes.get_legend_handles_labels()[1]) > 1)
  figure.savefig(path, format="png", dpi=150)


def run_panels(run: RunFolder) -> dict[str, bytes]:
  """Returns title to PNG of each panel of `plot_run`, for pages that place them by their width."""
  return {title: panel_png(title, series, plot) for title, series, plot in _run_panels(run)}


def panel_png(title: str, series: dict[str, Series], plot: Callable) -> bytes:
  """Returns the PNG of one panel, readable at 360 pixels."""
  figure, png = Figure(figsize=PANEL, layout="constrained"), io.BytesIO()
  axes = figure.add_subplot()
  plot(axes, series)
  finish_panel(axes, title, legend=len(axes.get_legend_handles_labels()[1]) > 1, width=PANEL[0])
  figure.savefig(png, format="png", dpi=150)
  return png.getvalue()


def _run_panels(run: RunFolder) -> list[tuple[str, dict[str, Series], Callable]]:
  """Returns title, series and plotting function of each panel that a run has values for."""
  panels = []
  score, measure = score_of(run)
  for title, labels, plot in _PANELS:
    if title == "reward" and score == ACCURACY:
      continue
    if title == "accuracy":
      title = title if measure == HELDOUT or score != ACCURACY else measure
      labels = labels | {metric: name for name, metric in set_accuracies(run).items()}
    candidates = {label: run.series(name) for name, label in labels.items()}
    series = {label: pair for label, pair in candidates.items() if len(pair[0])}
    if series:
      panels.append((title, series, plot))
  return panels


def line_style(index: int) -> dict:
  """Returns colour and dashes of the line `index`; lines of equal colour differ in dashes."""
  return {"color": COLOURS[index % len(COLOURS)], "ls": DASHES[index // len(COLOURS) % len(DASHES)]}


def visible_lines(series: dict[str, Series]) -> list[tuple[str, Series, dict]]:
  """Returns (label, series, style) of lines that share axes, so that none hides another.

  A line within CLOSE of an earlier one, as a share of the range of all values, is dashed, so that
  both colours show; its label names the other, with "=" where all values are equal.
  """
  values = np.concatenate([pair[1] for pair in series.values()] or [np.zeros(0)])
  values = values[np.isfinite(values)]
  near = CLOSE * float(np.ptp(values)) if len(values) else 0.0
  out: list[tuple[str, Series, dict]] = []
  for name, (iterations, line) in series.items():
    label, style = name, {}
    for earlier_name, (at_other, line_other) in list(series.items())[:len(out)]:
      if not np.array_equal(iterations, at_other):
        continue
      if np.allclose(line, line_other, rtol=0, atol=near, equal_nan=True):
        sign = "=" if np.array_equal(line, line_other, equal_nan=True) else "≈"
        label, style = f"{name} {sign} {earlier_name}", {"ls": (0, (3, 3))}
        break
    out.append((label, (iterations, line), style))
  return out


def finish_axes(axes: Axes, title: str, label: str, pad: float = 6) -> None:
  """Adds the title, `pad` points above the axes, the label of the x axis, and a quiet grid."""
  axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=pad)
  axes.set_xlabel(label, fontsize=8.5, color=INK)
  axes.grid(True, color=GRID, lw=0.8)
  axes.set_axisbelow(True)
  axes.spines[["top", "right"]].set_visible(False)
  axes.spines[["left", "bottom"]].set_color("#bbbbbb")
  axes.tick_params(which="both", labelsize=8.5, color="#bbbbbb", labelcolor=INK)


def finish_panel(axes: Axes, title: str, legend: bool, label: str = "iteration",
            width: float = 4.6) -> None:
  """Adds title, labels and, above the axes of a panel `width` inches wide, the legend."""
  labels = axes.get_legend_handles_labels()[1]
  columns = _legend_columns(labels, width) if legend else 1
  lines = -(-len(labels) // columns) if legend else 0
  finish_axes(axes, title, label, pad=6 + 14 * lines)
  axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
  if legend:
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderaxespad=0.2,
                borderpad=0.2, frameon=False, fontsize=8, labelcolor=INK, handlelength=1.3,
                handletextpad=0.5, columnspacing=1.2, labelspacing=0.35)


def _legend_columns(labels: list[str], width: float) -> int:
  """Returns the columns of a legend that is no wider than its axes.

  A character of 8 points is 4.6 points wide on average; a handle with its spaces takes 24; the axes
  are 0.8 inches narrower than their panel.
  """
  for columns in range(min(5, len(labels)), 1, -1):
    widest = [max(map(len, labels[start::columns])) for start in range(columns)]
    if sum(4.6 * count + 24 for count in widest) <= 72 * (width - 0.8):
      return columns
  return 1


def plot_lines(axes: Axes, series: dict[str, Series]) -> None:
  for colour, (label, (iterations, values), style) in zip(COLOURS, visible_lines(series),
                                                          strict=False):
    axes.plot(iterations, values, color=colour, lw=1.5, label=label,
              marker="o" if len(values) < 3 else None, ms=4, **style)


def _accuracy(axes: Axes, series: dict[str, Series]) -> None:
  """Plots evaluations, few and exact, with markers; rollouts, many and noisy, as a thin line."""
  evaluations = 0
  for label, (iterations, values) in series.items():
    if label == "rollouts":
      axes.plot(iterations, values, color=COLOURS[4], lw=1.1, label=label, zorder=2)
    else:
      axes.plot(iterations, values, lw=1.6, marker="o", ms=4.5, label=label, zorder=3,
                **line_style(evaluations))
      evaluations += 1
  axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))


def _gradient(axes: Axes, series: dict[str, Series]) -> None:
  plot_lines(axes, series)
  values = np.concatenate([values for _, values in series.values()])
  values = values[np.isfinite(values)]
  if len(values) and values.min() > 0:
    axes.set_yscale("log")
    subs = (1.0, 2.0, 5.0) if values.max() < 50 * values.min() else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _bands(axes: Axes, series: dict[str, Series]) -> None:
  for low, high, alpha in (("p05", "p95", 0.18), ("p25", "p75", 0.35)):
    if low in series and high in series and len(series[low][0]) == len(series[high][0]):
      axes.fill_between(series[low][0], series[low][1], series[high][1], color=COLOURS[0],
                        alpha=alpha, lw=0, label=f"{low} to {high}")
  if "p50" in series:
    plot_lines(axes, {"median": series["p50"]})
  axes.axhline(0, color="#888888", lw=0.8)


def _shares(axes: Axes, series: dict[str, Series]) -> None:
  plot_lines(axes, series)
  axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
  axes.set_ylim(bottom=0)


_KL_PAIRS = (("current", "anchor"), ("anchor", "behavior"), ("current", "behavior"))

_KL = {f"kl/{a}_{b}": f"{a} to {b}" for a, b in _KL_PAIRS}
_QUANTILES = {f"log_ratio/{label}": label for label in QUANTILES}
_CLIPPED = {f"clip/{side}": side for side in ("high", "low", "dual", "dropped")}

# Title, label of each metric, and the function that plots the metrics that the run has.
_PANELS = (
    ("accuracy", {"reward/correct": "rollouts", "eval/accuracy": "held out, greedy"}, _accuracy),
    ("reward", {"reward/mean": "rollouts", "eval/reward": "held out, greedy"}, plot_lines),
    ("completion length, tokens",
     {"rollout/length": "rollouts", "eval/length": "held out, greedy"}, plot_lines),
    ("share cut off", {"rollout/truncated": "rollouts", "eval/truncated": "held out, greedy"},
     _shares),
    ("groups without a difference",
     {"reward/solve_all": "all correct", "reward/solve_none": "none correct"}, _shares),
    ("entropy, nats", {"policy/entropy": "entropy"}, plot_lines),
    ("gradient norm before clipping", {"optimizer/grad_norm": "gradient norm"}, _gradient),
    ("log-ratio to the anchor, nats", _QUANTILES, _bands),
    ("share of tokens clipped", _CLIPPED, _shares),
    ("KL divergence, nats per token", _KL, plot_lines),
)
