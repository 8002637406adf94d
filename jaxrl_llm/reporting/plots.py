"""Figures of one run and of several, drawn without pyplot's global state."""

import os
from typing import BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, PercentFormatter

from jaxrl_llm.reporting.reader import Run
from jaxrl_llm.reporting.summary import QUANTILES

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#4d4d4d")
DASHES = ("-", "--", ":")
INK, GRID = "#333333", "#e4e4e4"

Series = tuple[np.ndarray, np.ndarray]


def plot_run(run: Run, path: str | os.PathLike | BinaryIO) -> None:
  """One PNG with a panel per quantity that the run logged.

  Args:
    run: the run.
    path: file, or binary stream, that receives the PNG.
  """
  panels = []
  for title, labels, draw in _PANELS:
    series = {label: run.series(name) for name, label in labels.items() if len(run.series(name)[0])}
    if series:
      panels.append((title, series, draw))
  columns = min(3, len(panels)) if len(panels) != 4 else 2
  rows = -(-len(panels) // columns) if panels else 1
  figure = Figure(figsize=(4.6 * max(1, columns), 3.1 * rows), layout="constrained")
  figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
  if not panels:
    figure.text(0.5, 0.5, "nothing to plot yet", ha="center", color=INK)
  for index, (title, series, draw) in enumerate(panels):
    axes = figure.add_subplot(rows, columns, index + 1)
    draw(axes, series)
    _finish(axes, title, legend=len(axes.get_legend_handles_labels()[1]) > 1)
  figure.savefig(path, format="png", dpi=150)


def plot_compare(runs: dict[str, Run], path: str | os.PathLike | BinaryIO, *,
                 metric: str = "eval/accuracy", title: str = "held-out accuracy") -> None:
  """One share, by default held-out accuracy, of several runs in one PNG; the legend in the order of
  the last values.

  Args:
    runs: label to run; a run that was never evaluated has no curve.
    path: file, or binary stream, that receives the PNG.
    metric: key of the metrics lines, between 0 and 1.
    title: what it is.
  """
  figure = Figure(figsize=(7.2, 4.2), layout="constrained")
  axes = figure.add_subplot()
  for index, (label, run) in enumerate(runs.items()):
    iterations, values = run.series(metric)
    if len(values):
      style = DASHES[index // len(COLOURS) % len(DASHES)]
      marker = "o" if len(values) < 30 else None
      axes.plot(iterations, values, style, color=COLOURS[index % len(COLOURS)], lw=1.7,
                marker=marker, ms=3.5, label=label)
  axes.yaxis.set_major_formatter(PercentFormatter(1.0))
  _finish(axes, title, legend=False)
  handles, labels = axes.get_legend_handles_labels()
  if handles:
    order = sorted(range(len(handles)), key=lambda i: -np.nan_to_num(handles[i].get_ydata()[-1]))
    axes.legend([handles[i] for i in order], [labels[i] for i in order], loc="center left",
                bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9, labelcolor=INK)
  figure.savefig(path, format="png", dpi=150)


def _finish(axes: Axes, title: str, legend: bool) -> None:
  axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK,
                 pad=20 if legend else 6)
  axes.set_xlabel("iteration", fontsize=8.5, color=INK)
  axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
  axes.grid(True, color=GRID, lw=0.8)
  axes.set_axisbelow(True)
  axes.spines[["top", "right"]].set_visible(False)
  axes.spines[["left", "bottom"]].set_color("#bbbbbb")
  axes.tick_params(which="both", labelsize=8.5, color="#bbbbbb", labelcolor=INK)
  if legend:
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=5, borderaxespad=0.2,
                borderpad=0.2, frameon=False, fontsize=8, labelcolor=INK, handlelength=1.3,
                handletextpad=0.5, columnspacing=1.2)


def _lines(axes: Axes, series: dict[str, Series]) -> None:
  for colour, (label, (iterations, values)) in zip(COLOURS, series.items(), strict=False):
    axes.plot(iterations, values, color=colour, lw=1.5, label=label,
              marker="o" if len(values) < 3 else None, ms=4)


def _accuracy(axes: Axes, series: dict[str, Series]) -> None:
  """Evaluations are few and exact: markers. Rollouts are many and noisy: a thin line behind."""
  for label, (iterations, values) in series.items():
    if label == "rollouts":
      axes.plot(iterations, values, color=COLOURS[4], lw=1.1, label=label, zorder=2)
    else:
      axes.plot(iterations, values, color=COLOURS[0], lw=1.6, marker="o", ms=4.5, label=label,
                zorder=3)
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

# Title, metric name to label, and how to draw what is there.
_PANELS = (
    ("accuracy", {
        "reward/correct": "rollouts",
        "eval/accuracy": "held out, greedy"
    }, _accuracy),
    ("entropy, nats", {
        "policy/entropy": "entropy"
    }, _lines),
    ("gradient norm before clipping", {
        "optimizer/grad_norm": "gradient norm"
    }, _gradient),
    ("log-ratio to the anchor, nats", {
        f"log_ratio/{label}": label for label in QUANTILES
    }, _bands),
    ("share of tokens clipped", {
        f"clip/{side}": side for side in ("high", "low", "dual", "dropped")
    }, _shares),
    ("KL divergence, nats per token", {
        f"kl/{a}_{b}": f"{a} to {b}" for a, b in _KL_PAIRS
    }, _lines),
)
