"""Figures of one run and of several, without pyplot's global state."""

import io
import os
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, PercentFormatter

from jaxrl_llm.reporting.reader import RunFolder
from jaxrl_llm.reporting.summary import QUANTILES
from jaxrl_llm.reporting.tables import HELDOUT, accuracy_name, set_accuracies

# The palette of Okabe and Ito, which colour-blind readers can distinguish, and two more.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#4d4d4d")
DASHES = ("-", "--", ":")
INK, GRID = "#333333", "#e4e4e4"
CLOSE = 0.005  # of the range: lines that are nearer than a line is wide

PANEL = (3.8, 2.7)  # inches of a panel on a page
# Metrics that a comparison also shows, where all groups logged them.
COMPARED = {
    "reward/correct": "share of correct rollouts",
    "policy/entropy": "entropy, nats",
    "kl/current_behavior": "KL to the sampling policy, nats",
    "clip/dropped": "share of tokens dropped by clipping",
    "rollout/length": "tokens of a completion",
    "optimizer/grad_norm": "gradient norm before clipping",
}

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
    _finish(axes, title, legend=len(axes.get_legend_handles_labels()[1]) > 1)
  figure.savefig(path, format="png", dpi=150)


def run_panels(run: RunFolder) -> dict[str, bytes]:
  """Returns title to PNG of each panel of `plot_run`, for pages that place them by their width."""
  return {title: _panel(title, series, plot) for title, series, plot in _run_panels(run)}


def group_panels(groups: dict[str, list[RunFolder]], metric: str) -> dict[str, bytes]:
  """Returns title to PNG of panels that show groups of runs together.

  The first panel has `metric`; the others have what all groups logged of COMPARED, and sampled
  accuracy, unless it is the same number in all lines. A line is the mean over a group's runs, at
  the iterations that all of them have logged.
  """
  logged = {name for runs in groups.values() for run in runs for line in run.metrics
            for name in line}
  sampled = {name: f"sampled accuracy, {name}" for name in sorted(logged)
             if name.startswith("eval/avg@") and name[9:].isdecimal()}
  out = {}
  for name, title in (sampled | COMPARED | {metric: metric}).items():
    series = {label: _common(runs, name) for label, runs in groups.items()}
    means = {label: (steps, values.mean(0)) for label, (steps, values) in series.items()
             if len(steps)}
    values = np.concatenate([pair[1] for pair in means.values()] or [np.zeros(1)])
    if len(means) == len(groups) and (name == metric or np.ptp(values) != 0):
      out[title] = _panel(title, means, _lines)
  return {title: out[title] for title in sorted(out, key=lambda title: title != metric)}


def _common(runs: list[RunFolder], metric: str) -> Series:
  """Returns (iterations [I] that all runs logged, values [S, I])."""
  by_run = [dict(zip(*run.series(metric), strict=True)) for run in runs]
  steps = sorted(set.intersection(*map(set, by_run)))
  return np.array(steps, int), np.array([[line[step] for step in steps] for line in by_run])


def _panel(title: str, series: dict[str, Series], plot: Callable) -> bytes:
  """Returns the PNG of one panel, readable at 360 pixels."""
  figure, png = Figure(figsize=PANEL, layout="constrained"), io.BytesIO()
  axes = figure.add_subplot()
  plot(axes, series)
  _finish(axes, title, legend=len(axes.get_legend_handles_labels()[1]) > 1, width=PANEL[0])
  figure.savefig(png, format="png", dpi=150)
  return png.getvalue()


def _run_panels(run: RunFolder) -> list[tuple[str, dict[str, Series], Callable]]:
  """Returns title, series and plotting function of each panel that a run has values for."""
  panels = []
  for title, labels, plot in _PANELS:
    if title == "accuracy":
      labels = labels | {metric: name for name, metric in set_accuracies(run).items()}
    candidates = {label: run.series(name) for name, label in labels.items()}
    series = {label: pair for label, pair in candidates.items() if len(pair[0])}
    if series:
      judged = accuracy_name(run) if title == "accuracy" else HELDOUT
      panels.append((title if judged == HELDOUT else judged, series, plot))
  return panels


def plot_compare(runs: dict[str, RunFolder], path: str | os.PathLike | BinaryIO, *,
                 metric: str = "eval/accuracy", title: str = "held-out accuracy") -> None:
  """Writes one PNG that compares a share, by default held-out accuracy, between runs.

  The legend is in the order of the last values.

  Args:
    runs: label to run; a run that was never evaluated has no curve.
    path: file, or binary stream, that receives the PNG.
    metric: key of the metrics lines, with values from 0 to 1.
    title: title of the figure.
  """
  figure = Figure(figsize=(7.2, 4.2), layout="constrained")
  axes = figure.add_subplot()
  all_series = {label: run.series(metric) for label, run in runs.items()}
  index_of = {label: index for index, label in enumerate(runs)}
  evaluated = {label: pair for label, pair in all_series.items() if len(pair[0])}
  for name, (label, (iterations, values), style) in zip(evaluated, told_apart(evaluated),
                                                        strict=True):
    marker = "o" if len(values) < 30 else None
    axes.plot(iterations, values, lw=1.7, marker=marker, ms=3.5, label=label,
              **(line_style(index_of[name]) | style))
  axes.yaxis.set_major_formatter(PercentFormatter(1.0))
  _finish(axes, title, legend=False)
  handles, labels = axes.get_legend_handles_labels()
  if handles:
    order = np.argsort([-np.nan_to_num(line.get_ydata()[-1]) for line in handles], kind="stable")
    axes.legend([handles[i] for i in order], [labels[i] for i in order], loc="center left",
                bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9, labelcolor=INK)
  figure.savefig(path, format="png", dpi=150)


def plot_groups(groups: dict[str, Series], path: str | os.PathLike | BinaryIO,
                metric: str, label: str = "iteration") -> None:
  """Writes one PNG of a metric's mean over seeds, with the smallest to the largest seed as a band.

  Args:
    groups: label to (iterations [I], values [S, I] of S seeds).
    path: file, or binary stream, that receives the PNG.
    metric: the title.
    label: label of the x axis.
  """
  figure = Figure(figsize=(7.2, 4.2), layout="constrained")
  axes = figure.add_subplot()
  means = told_apart({name: (steps, values.mean(0)) for name, (steps, values) in groups.items()})
  for index, ((iterations, values), (name, (_, mean), overlap_style)) in enumerate(
      zip(groups.values(), means, strict=True)):
    style, marker = line_style(index) | overlap_style, "o" if len(iterations) < 30 else None
    axes.plot(iterations, mean, lw=1.7, marker=marker, ms=3.5, label=name, **style)
    if len(values) > 1:
      axes.fill_between(iterations, values.min(0), values.max(0), color=style["color"], alpha=0.18,
                        lw=0)
  _finish(axes, metric, legend=False, label=label)
  axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9,
              labelcolor=INK)
  figure.savefig(path, format="png", dpi=150)


def plot_panels(panels: dict[str, dict[str, Series]], path: str | os.PathLike | BinaryIO,
                metric: str, label: str = "iteration") -> None:
  """Writes one PNG with a panel per name, on equal axes: every seed thin, and the mean over seeds.

  A mean that hides another is dashed.

  Args:
    panels: name to label to (x [I], values [S, I] of S seeds). A label has one colour everywhere.
    path: file, or binary stream, that receives the PNG.
    metric: label of the y axes.
    label: label of the x axes.
  """
  columns = min(4, len(panels))
  rows = -(-len(panels) // columns)
  figure = Figure(figsize=(max(7.2, 2.6 * columns), 2.3 * rows + 0.5), layout="constrained")
  all_axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
  labels = list(dict.fromkeys(name for groups in panels.values() for name in groups))
  handles = {}
  for axes, (title, groups) in zip(all_axes, panels.items(), strict=False):
    means = told_apart({name: (x, values.mean(0)) for name, (x, values) in groups.items()})
    for (name, (x, values)), (_, (_, mean), overlap_style) in zip(groups.items(), means,
                                                                  strict=True):
      style = line_style(labels.index(name))
      axes.plot(x, values.T, lw=0.8, alpha=0.45, **style)
      axes.plot(x, mean, lw=2.2, **(style | overlap_style))
      handles[name] = Line2D([], [], lw=2.2, **style)
    _finish(axes, title, legend=False, label=label)
  for axes in all_axes[::columns]:
    axes.set_ylabel(metric, fontsize=8.5, color=INK)
  for axes in all_axes[len(panels):]:
    axes.set_visible(False)
  lowest = slice(max(0, len(panels) - columns), None)  # panels with none below them
  for axes in all_axes[lowest]:
    axes.tick_params(labelbottom=True)
  for axes in all_axes[:lowest.start]:
    axes.set_xlabel("")
  figure.legend([handles[name] for name in labels], labels, loc="outside upper right",
                ncols=min(len(labels), columns + 1), frameon=False, fontsize=9, labelcolor=INK)
  figure.savefig(path, format="png", dpi=150)


def line_style(index: int) -> dict:
  """Returns colour and dashes of the line `index`; lines of equal colour differ in dashes."""
  return {
      "color": COLOURS[index % len(COLOURS)],
      "ls": DASHES[index // len(COLOURS) % len(DASHES)],
  }


def told_apart(series: dict[str, Series]) -> list[tuple[str, Series, dict]]:
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


def _finish(axes: Axes, title: str, legend: bool, label: str = "iteration",
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


def _lines(axes: Axes, series: dict[str, Series]) -> None:
  for colour, (label, (iterations, values), style) in zip(COLOURS, told_apart(series),
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
  _lines(axes, series)
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
    _lines(axes, {"median": series["p50"]})
  axes.axhline(0, color="#888888", lw=0.8)


def _shares(axes: Axes, series: dict[str, Series]) -> None:
  _lines(axes, series)
  axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
  axes.set_ylim(bottom=0)


_KL_PAIRS = (("current", "anchor"), ("anchor", "behavior"), ("current", "behavior"))

_KL = {f"kl/{a}_{b}": f"{a} to {b}" for a, b in _KL_PAIRS}
_QUANTILES = {f"log_ratio/{label}": label for label in QUANTILES}
_CLIPPED = {f"clip/{side}": side for side in ("high", "low", "dual", "dropped")}

# Title, label of each metric, and the function that plots the metrics that the run has.
_PANELS = (
    ("accuracy", {"reward/correct": "rollouts", "eval/accuracy": "held out, greedy"}, _accuracy),
    ("entropy, nats", {"policy/entropy": "entropy"}, _lines),
    ("gradient norm before clipping", {"optimizer/grad_norm": "gradient norm"}, _gradient),
    ("log-ratio to the anchor, nats", _QUANTILES, _bands),
    ("share of tokens clipped", _CLIPPED, _shares),
    ("KL divergence, nats per token", _KL, _lines),
)
