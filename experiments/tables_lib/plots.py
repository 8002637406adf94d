"""Figures of several runs: curves over seeds, panels, comparisons."""

import os
from typing import BinaryIO

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from experiments.report.plots import (
  INK,
  Series,
  finish_axes,
  finish_panel,
  line_style,
  panel_png,
  plot_lines,
  visible_lines,
)
from experiments.report.run_folder import RunFolder

__all__ = [
    "finish_axes", "group_panels", "line_style", "plot_compare", "plot_groups", "plot_panels"
]
# Metrics that a comparison also shows, where all groups logged them.
COMPARED = {
    "reward/correct": "share of correct rollouts",
    "policy/entropy": "entropy, nats",
    "kl/current_behavior": "KL to the sampling policy, nats",
    "clip/dropped": "share of tokens dropped by clipping",
    "rollout/length": "tokens of a completion",
    "optimizer/grad_norm": "gradient norm before clipping",
}


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
      out[title] = panel_png(title, means, plot_lines)
  return {title: out[title] for title in sorted(out, key=lambda title: title != metric)}


def _common(runs: list[RunFolder], metric: str) -> Series:
  """Returns (iterations [I] that all runs logged, values [S, I])."""
  by_run = [dict(zip(*run.series(metric), strict=True)) for run in runs]
  steps = sorted(set.intersection(*map(set, by_run)))
  return np.array(steps, int), np.array([[line[step] for step in steps] for line in by_run])


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
  for name, (label, (iterations, values), style) in zip(evaluated, visible_lines(evaluated),
                                                        strict=True):
    marker = "o" if len(values) < 30 else None
    axes.plot(iterations, values, lw=1.7, marker=marker, ms=3.5, label=label,
              **(line_style(index_of[name]) | style))
  axes.yaxis.set_major_formatter(PercentFormatter(1.0))
  finish_panel(axes, title, legend=False)
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
  means = visible_lines({name: (steps, values.mean(0)) for name, (steps, values) in groups.items()})
  for index, ((iterations, values), (name, (_, mean), overlap_style)) in enumerate(
      zip(groups.values(), means, strict=True)):
    style, marker = line_style(index) | overlap_style, "o" if len(iterations) < 30 else None
    axes.plot(iterations, mean, lw=1.7, marker=marker, ms=3.5, label=name, **style)
    if len(values) > 1:
      axes.fill_between(iterations, values.min(0), values.max(0), color=style["color"], alpha=0.18,
                        lw=0)
  finish_panel(axes, metric, legend=False, label=label)
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
    means = visible_lines({name: (x, values.mean(0)) for name, (x, values) in groups.items()})
    for (name, (x, values)), (_, (_, mean), overlap_style) in zip(groups.items(), means,
                                                                  strict=True):
      style = line_style(labels.index(name))
      axes.plot(x, values.T, lw=0.8, alpha=0.45, **style)
      axes.plot(x, mean, lw=2.2, **(style | overlap_style))
      handles[name] = Line2D([], [], lw=2.2, **style)
    finish_panel(axes, title, legend=False, label=label)
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
