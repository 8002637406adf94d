"""Figures of the exact studies."""

import os
from typing import BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from jaxrl_llm.analysis.monte_carlo import Window
from jaxrl_llm.analysis.studies import WEIGHTS, Row
from jaxrl_llm.reporting.plots import COLOURS, DASHES, GRID, INK

Path = str | os.PathLike | BinaryIO


def plot_drift(rows: list[Row], path: Path) -> None:
  """Bias, linear, and variance, logarithmic, against drift; the bars are standard errors over
  instances.
  """
  figure = Figure(figsize=(11.5, 4.0), layout="constrained")
  left, right = figure.subplots(1, 2)
  methods = list(dict.fromkeys(row.method for row in rows))
  for index, method in enumerate(methods):
    mine = sorted((row for row in rows if row.method == method), key=lambda row: row.drift)
    drift = [row.drift for row in mine]
    for axes, metric in ((left, "bias"), (right, "variance")):
      axes.errorbar(drift, [row.mean[metric] for row in mine], [row.error[metric] for row in mine],
                    label=method, capsize=2, marker="o", ms=3.5, **_style(index))
  _logarithmic(right)
  _finish(left, "relative bias", "drift, std of the logit difference")
  _finish(right, "variance, trace", "drift, std of the logit difference")
  _legend(right)
  figure.savefig(path, format="png", dpi=150)


def plot_ratio_variance(variances: dict[str, np.ndarray], path: Path) -> None:
  """Variance of each weight, by its name in WEIGHTS, against the position of its token."""
  figure = Figure(figsize=(7.2, 4.0), layout="constrained")
  axes = figure.subplots()
  for name, values in variances.items():
    style = _style(list(WEIGHTS).index(name))
    axes.plot(np.arange(1, len(values) + 1), values, label=name, marker="o", ms=3.5, **style)
  _logarithmic(axes)
  axes.set_xticks(np.arange(1, len(next(iter(variances.values()))) + 1))
  _finish(axes, "variance of the weight under the behavior policy", "position t")
  _legend(axes)
  figure.savefig(path, format="png", dpi=150)


def plot_windows(windows: dict[str, Window], path: Path) -> None:
  """Share of tokens outside the window against position: closed form as lines, simulation as dots.
  """
  figure = Figure(figsize=(7.2, 4.0), layout="constrained")
  axes = figure.subplots()
  for index, (label, window) in enumerate(windows.items()):
    position = np.arange(1, len(window.closed_form) + 1)
    dots = np.unique(np.geomspace(1, len(position), 25).astype(int)) - 1
    axes.plot(position, window.closed_form, label=label, **_style(index))
    axes.plot(position[dots], window.simulated[dots], "o", ms=3, color=_style(index)["color"])
  axes.set_xscale("log")
  axes.set_ylim(0, 1)
  _finish(axes, "share of tokens outside the window", "position t")
  _legend(axes)
  figure.savefig(path, format="png", dpi=150)


def _style(index: int) -> dict:
  return {
      "color": COLOURS[index % len(COLOURS)],
      "ls": DASHES[index // len(COLOURS) % len(DASHES)],
      "lw": 1.5
  }


def _logarithmic(axes: Axes) -> None:
  axes.set_yscale("log")
  axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
  axes.yaxis.set_major_formatter("{x:g}")
  axes.yaxis.set_minor_locator(NullLocator())


def _finish(axes: Axes, title: str, label: str) -> None:
  axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK)
  axes.set_xlabel(label, fontsize=8.5, color=INK)
  axes.grid(True, color=GRID, lw=0.8)
  axes.set_axisbelow(True)
  axes.spines[["top", "right"]].set_visible(False)
  axes.spines[["left", "bottom"]].set_color("#bbbbbb")
  axes.tick_params(which="both", labelsize=8.5, color="#bbbbbb", labelcolor=INK)


def _legend(axes: Axes) -> None:
  axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8.5,
              labelcolor=INK)
