"""How does the cumulative log-ratio spread with the position, and which window follows it?

  python experiments/position/sweep.py --list
  python experiments/position/sweep.py --jobs=2
  python experiments/position/sweep.py --render

Policies are trained on rollouts of different staleness. L_t is the sum of the log-ratios of a
completion's first t tokens, between the policy at the start of an iteration and the one that
sampled. Writes the tables of README.md and spread.png and windows.png beside this file.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from experiments.report import plots
from experiments.report.run_folder import RunFolder
from experiments.tables_lib import page_parts, sweeps
from experiments.tables_lib.compare import interval
from experiments.tables_lib.sweeps import Cell, Sweep

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
DELAYS = (1, 4, 8, 16)
WINDOWS = {"fixed": 0.0, "sqrt(t)": 0.5, "linear": 1.0}  # power of t
CLIPPED = 0.2  # share of the tokens that each window leaves out, all positions together
LAST = 20  # iterations whose rollouts are read
LEAST = 200  # completions that reach a position, or it is left out
HEADER = ("delay, iterations", "KL per token, nats", "slope of log std(L_t) on log t",
          "std of L_t at t = 1", "at the last t", "mean of L_t at the last t",
          "first t where the mean leaves CTPO's window, by seed")
LOG_LOW = 0.025  # CTPO's published window is L_t >= -LOG_LOW sqrt(t)


def cells() -> list[Cell]:
  return [Cell(f"delay{delay}_seed{seed}", (
      "--config=configs/chain_offpolicy.py:gspo", "--config.updates.anchor=recomputed",
      f"--config.updates.staleness={delay}", f"--config.seed={seed}"))
          for delay in DELAYS for seed in SEEDS]


def measure(run: RunFolder) -> dict:
  """Returns statistics of L_t by position t = 1, 2, ..., each over all completions that reach t."""
  rows = [row for iteration in run.rollout_iterations()[-LAST:] for row in run.rollouts(iteration)]
  steps = [_log_ratios(row) for row in rows]
  length = max(map(len, steps))
  sums = np.full((len(steps), length), np.nan)
  for row, step in zip(sums, steps, strict=True):
    row[:len(step)] = np.cumsum(step)
  count = np.isfinite(sums).sum(0)
  sums = sums[:, count >= LEAST]
  return {
      "rows": count[count >= LEAST].tolist(),
      "std": _rounded(np.nanstd(sums, axis=0)),
      "mean": _rounded(np.nanmean(sums, axis=0)),
      "kl": float(-np.concatenate(steps).mean()),
      "clipped": {name: _rounded(clipped(sums, power)) for name, power in WINDOWS.items()},
      "final_accuracy": float(run.series("eval/accuracy")[1][-1]),
  }


def _log_ratios(row: dict) -> np.ndarray:
  """Returns log pi(a_t) - log mu(a_t) of the sampled tokens of a completion."""
  sampled = np.asarray(row["mask"]) > 0
  anchor, behavior = (np.asarray(row[key], float)
                      for key in ("anchor_log_probs", "behavior_log_probs"))
  return (anchor - behavior)[sampled]


def clipped(sums: np.ndarray, power: float) -> np.ndarray:
  """Returns the share [T] of completions with |L_t| > c t^power, c such that CLIPPED are outside.

  Args:
    sums: [N, T] of L_t, NaN after a completion's end.
  """
  scaled = np.abs(sums) / np.arange(1, sums.shape[1] + 1)**power
  bound = np.nanquantile(scaled, 1 - CLIPPED)
  return np.nanmean(np.where(np.isfinite(scaled), scaled > bound, np.nan), axis=0)


def slope(std: list[float]) -> float:
  """Returns the least-squares slope of log std on log t."""
  return float(np.polyfit(np.log(np.arange(1, len(std) + 1)), np.log(std), 1)[0])


def _rounded(values: np.ndarray) -> list[float]:
  return [float(f"{value:.5g}") for value in values]


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md, and the two figures."""
  runs_by_delay = {}
  for delay in DELAYS:
    keys = [f"delay{delay}_seed{seed}" for seed in SEEDS]
    if results.keys() >= set(keys):
      runs_by_delay[delay] = [results[key]["measured"] for key in keys]
  rows = [_row(delay, seeds) for delay, seeds in runs_by_delay.items()]
  page_parts.replace_part(folder / "README.md", "sweep.py",
                      page_parts.narrow_tables(HEADER, rows) + sweeps.made_at(results))
  if runs_by_delay:
    draw_spread(runs_by_delay, folder / "spread.png")
    draw_windows(runs_by_delay, folder / "windows.png")


def _row(delay: int, seeds: list[dict]) -> tuple:
  of = lambda function: interval(np.array([function(one) for one in seeds]))
  return (delay, of(lambda one: one["kl"]), of(lambda one: slope(one["std"])),
          of(lambda one: one["std"][0]), of(lambda one: one["std"][-1]),
          of(lambda one: one["mean"][-1]), ", ".join(outside(one["mean"]) for one in seeds))


def outside(mean: list[float]) -> str:
  """Returns the first position at which the mean row is below CTPO's window, or "never"."""
  bounds = -LOG_LOW * np.sqrt(np.arange(1, len(mean) + 1))
  indices = np.flatnonzero(np.asarray(mean) < bounds)
  return str(indices[0] + 1) if len(indices) else "never"


def _by_position(seeds: list[dict], *keys: str) -> np.ndarray:
  """Returns [S, T] of a statistic at the positions that all seeds have."""
  series = []
  for one in seeds:
    for key in keys:
      one = one[key]
    series.append(one)
  return np.array([values[:min(map(len, series))] for values in series])


def draw_spread(runs_by_delay: dict[int, list[dict]], path: Path) -> None:
  """Draws std(L_t) over t, a line for each delay, beside lines of slope 1/2 and 1."""
  figure = Figure(figsize=(6.4, 4.2), layout="constrained")
  axes = figure.add_subplot()
  for index, (delay, seeds) in enumerate(runs_by_delay.items()):
    std = _by_position(seeds, "std")
    at = np.arange(1, std.shape[1] + 1)
    style = plots.line_style(index)
    axes.plot(at, std.mean(0), lw=1.7, label=f"delay {delay}", **style)
    axes.fill_between(at, std.min(0), std.max(0), color=style["color"], alpha=0.18, lw=0)
  for power, dashes in ((0.5, ":"), (1.0, "--")):
    axes.plot(at, std.mean(0)[0] * at**power, color="0.4", lw=1, ls=dashes,
              label=f"slope {power:g}, from the last line's start")
  axes.set_xscale("log")
  axes.set_yscale("log")
  plots.finish_axes(axes, "std of the cumulative log-ratio L_t, nats", "position t")
  axes.legend(frameon=False, fontsize=9)
  figure.savefig(path, format="png", dpi=150)


def draw_windows(runs_by_delay: dict[int, list[dict]], path: Path) -> None:
  """Draws the share of tokens outside each window over t, a panel for each delay."""
  figure = Figure(figsize=(3.4 * len(runs_by_delay), 3.4), layout="constrained")
  for panel, (delay, seeds) in enumerate(runs_by_delay.items()):
    axes = figure.add_subplot(1, len(runs_by_delay), panel + 1)
    for index, name in enumerate(WINDOWS):
      share = _by_position(seeds, "clipped", name).mean(0)
      axes.plot(np.arange(1, len(share) + 1), share, lw=1.7, label=f"{name} window",
                **plots.line_style(index))
    axes.axhline(CLIPPED, color="0.6", lw=1, ls=":")
    plots.finish_axes(axes, f"outside the window, delay {delay}", "position t")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(0, None)
    if not panel:
      axes.legend(frameon=False, fontsize=9)
  figure.savefig(path, format="png", dpi=150)


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
