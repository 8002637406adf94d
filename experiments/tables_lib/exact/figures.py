"""Figures of the exact studies, as PNG files."""

import os
from typing import BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from experiments.report.plots import INK, finish_axes, line_style
from experiments.tables_lib.exact.monte_carlo import Window
from experiments.tables_lib.exact.studies import WEIGHTS, TableRow

Path = str | os.PathLike | BinaryIO
DRIFT_LABEL = "drift, std of the logit difference"


def plot_drift(rows: list[TableRow], path: Path) -> None:
  """Plots bias (linear) and variance (logarithmic) against drift, with standard errors as bars."""
  figure = Figure(figsize=(11.5, 4.0), layout="constrained")
  bias_axes, variance_axes = figure.subplots(1, 2)
  for index, method in enumerate(dict.fromkeys(row.method for row in rows)):
    by_drift = {row.drift: row for row in rows if row.method == method}
    mine = [by_drift[drift] for drift in sorted(by_drift)]
    for axes, metric in ((bias_axes, "bias"), (variance_axes, "variance")):
      axes.errorbar([row.drift for row in mine], [row.mean[metric] for row in mine],
                    [row.error[metric] for row in mine], label=method, capsize=2, marker="o",
                    ms=3.5, lw=1.5, **line_style(index))
  _logarithmic(variance_axes)
  finish_axes(bias_axes, "relative bias", DRIFT_LABEL)
  finish_axes(variance_axes, "variance, trace", DRIFT_LABEL)
  _legend(variance_axes)
  figure.savefig(path, format="png", dpi=150)


def plot_ratio_variance(variances: dict[str, np.ndarray], path: Path) -> None:
  """Plots the variance of each weight, by its name in WEIGHTS, against the token's position."""
  figure = Figure(figsize=(7.2, 4.0), layout="constrained")
  axes = figure.subplots()
  for name, values in variances.items():
    style = line_style(list(WEIGHTS).index(name))
    axes.plot(np.arange(1, len(values) + 1), values, label=name, marker="o", ms=3.5, lw=1.5,
              **style)
  _logarithmic(axes)
  axes.set_xticks(np.arange(1, len(next(iter(variances.values()))) + 1))
  finish_axes(axes, "variance of the weight under the behavior policy", "position t")
  _legend(axes)
  figure.savefig(path, format="png", dpi=150)


def plot_windows(windows: dict[str, Window], path: Path) -> None:
  """Plots the share of tokens outside each window: closed form as lines, simulation as dots."""
  figure = Figure(figsize=(7.2, 4.0), layout="constrained")
  axes = figure.subplots()
  for index, (label, window) in enumerate(windows.items()):
    position, style = np.arange(1, len(window.closed_form) + 1), line_style(index)
    dots = np.unique(np.geomspace(1, len(position), 25).astype(int)) - 1
    axes.plot(position, window.closed_form, label=label, lw=1.5, **style)
    axes.plot(position[dots], window.simulated[dots], "o", ms=3, color=style["color"])
  axes.set_xscale("log")
  axes.set_ylim(0, 1)
  finish_axes(axes, "share of tokens outside the window", "position t")
  _legend(axes)
  figure.savefig(path, format="png", dpi=150)


def _logarithmic(axes: Axes) -> None:
  axes.set_yscale("log")
  axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
  axes.yaxis.set_major_formatter("{x:g}")
  axes.yaxis.set_minor_locator(NullLocator())


def _legend(axes: Axes) -> None:
  axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8.5,
              labelcolor=INK)
