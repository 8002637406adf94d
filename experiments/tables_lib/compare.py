"""Compares runs that differ only in their seed with others: means and intervals over seeds."""

import dataclasses
import difflib
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from experiments.report import html, strips
from experiments.report.run_folder import RunFolder, read_run
from experiments.tables_lib import plots
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.reporting.tables import MISSING, markdown_table
from jaxrl_llm.reporting.writers import write_atomically
from jaxrl_llm.store.folders import path_of

LEVEL = 0.95
HEADER = ("runs", "seeds", "at iteration", "final", "best")
# Keys that do not distinguish methods; a plugin's method has a different name.
IGNORED = ("seed", "iterations", "plugins", "profile", "checkpoint.", "evaluation.every",
           "evaluation.patience", "writer.")


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs that differ only in their seed, and what they share.

  Attributes:
    label: the values of the compared keys.
    seeds: [S], of the runs.
    iterations: [I], that all runs have logged.
    values: [S, I], of the metric.
    runs: the S runs.
  """

  label: str
  seeds: list[int]
  iterations: np.ndarray
  values: np.ndarray
  runs: tuple[RunFolder, ...] = ()


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Groups, the metric they are compared by, whether less of it is better, and remarks on runs that
  are shorter, still running, or differ in more than they should.
  """

  metric: str
  lower: bool
  groups: list[Group]
  notes: list[str]


def compare(workdirs: list[str | os.PathLike], metric: str, by: Sequence[str] = (),
            labels: Sequence[str] = ()) -> Comparison:
  """Returns the comparison of runs, also of runs that are still running.

  Args:
    workdirs: folders of the runs.
    metric: key of the metrics lines; with a minus in front, less of it is better.
    by: config keys whose values group the runs, such as "estimator.name"; empty: all keys in which
      the runs differ, except the seed.
    labels: of the runs' groups, one for each run, in place of `by`; empty: made of the keys.

  Raises:
    RunError: a run cannot be read, no run has the metric, or no run has a key of `by`.
  """
  name, lower = metric.removeprefix("-"), metric.startswith("-")
  runs = [read_run(workdir) for workdir in workdirs]
  configs = [html.flat(run.config) for run in runs]
  notes = [note for run in runs for note in _state(run)]
  differing = _differing(configs)
  if labels and differing:
    notes.append(f"the runs differ in {', '.join(differing)}.")
  keys = list(by) or differing
  _check_keys(keys, configs)
  members: dict[str, list[int]] = {}
  for index, config in enumerate(configs):
    label = labels[index] if labels else _label(keys, config)
    members.setdefault(label, []).append(index)
  groups = []
  for label, indices in members.items():
    notes += _group_remarks(label, [configs[i] for i in indices],
                            [runs[i].workdir for i in indices])
    group = _group(label, [runs[i] for i in indices], name)
    if group is None:
      notes.append(f"{label}: no iteration at which all its runs logged {name}; left out.")
    else:
      groups.append(group)
  if not groups:
    raise RunError(_no_metric(name, runs))
  return Comparison(name, lower, groups, notes)


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
  """Returns a row below HEADER for each group, the best final value first.

  `final` is at the last iteration that all runs of the group have logged, `best` the best value of
  each run up to there; each a mean over seeds with its interval.
  """
  sign = 1 if comparison.lower else -1

  def order(group):  # NaN comes last
    final = sign * np.mean(group.values[:, -1])
    return np.isnan(final), final

  best = np.nanmin if comparison.lower else np.nanmax
  out: list[tuple[str, ...]] = []
  for group in sorted(comparison.groups, key=order):
    with np.errstate(all="ignore"):
      tops = np.array([best(row) if np.isfinite(row).any() else np.nan for row in group.values])
    out.append((group.label, ", ".join(map(str, sorted(group.seeds))), str(group.iterations[-1]),
                interval(group.values[:, -1]), interval(tops)))
  return out


def interval(values: np.ndarray) -> str:
  """Returns the mean with its 95 % interval over seeds, by Student's t; of one value, only that.

  The interval assumes values that are normally distributed over seeds.
  """
  mean = f"{np.mean(values):.4g}"
  if len(values) < 2:
    return f"{mean} (one seed)"
  return f"{mean} ± {half_width(values):.2g}"


def half_width(values: np.ndarray) -> float:
  """Returns half the width of the 95 % interval of the mean of at least two values."""
  factor = stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)
  return float(factor * np.std(values, ddof=1) / np.sqrt(len(values)))


def write(comparison: Comparison, out: str | os.PathLike) -> str:
  """Writes compare.png, compare.html and compare.md into the folder `out`; returns the table."""
  folder = path_of(out)
  folder.mkdir(parents=True, exist_ok=True)
  curves = io.BytesIO()
  plots.plot_groups({group.label: (group.iterations, group.values) for group in comparison.groups},
                    curves, comparison.metric)
  table = rows(comparison)
  notes = [*comparison.notes, "intervals: 95 %, Student's t over seeds; bands: the smallest to the "
           "largest seed."]
  text = markdown_table(HEADER, table) + "\n" + "\n".join(f"- {note}" for note in notes) + "\n"
  page = html.render("compare.html", title=f"Comparison by {comparison.metric}",
                     subtitle="lower is better" if comparison.lower else "higher is better",
                     header=HEADER, rows=table, notes=notes,
                     panels=html.image_sources(plots.group_panels(
                         {group.label: list(group.runs) for group in comparison.groups},
                         comparison.metric)),
                     labels=[group.label for group in comparison.groups],
                     columns=side_by_side(comparison.groups))
  write_atomically(folder / "compare.png", curves.getvalue())
  write_atomically(folder / "compare.html", page)
  write_atomically(folder / "compare.md", text)
  return text


def side_by_side(groups: list[Group]) -> list[tuple[str, str, list[tuple[int, list]]]]:
  """Returns the completions of the problems that the first runs of all groups show.

  Returns:
    (prompt, answer, rows) of each problem; a row is an iteration and, for each group, (completion,
    whether it is correct), or None where the group has none at that iteration.
  """
  by_group = [{(strip.prompt, strip.answer): strip for strip in strips.read(group.runs[0])}
              for group in groups]
  out = []
  for key in (key for key in by_group[0] if all(key in strip_of for strip_of in by_group)):
    cells = [{iteration: (text, correct) for iteration, text, correct in strip_of[key].completions}
             for strip_of in by_group]
    iterations = sorted(set().union(*cells))
    out.append((*key, [(i, [cell.get(i) for cell in cells]) for i in iterations]))
  return out


def _no_metric(name: str, runs: list[RunFolder]) -> str:
  """Returns the message for a metric that no group has, with the nearest that the runs have."""
  names = sorted({key for run in runs for line in run.metrics for key in line} - {"iteration"})
  near = difflib.get_close_matches(name, names, n=3, cutoff=0.0)
  return (f"--metric={name}: no group of runs has it. Fix: {' or '.join(near) or 'wait'}; "
          "`python -m jaxrl_llm.reporting.glossary` lists all metrics.")


def _group(label: str, runs: list[RunFolder], metric: str) -> Group | None:
  """Returns the group at the iterations that all its runs have logged, None without any."""
  series = [dict(zip(*run.series(metric), strict=True)) for run in runs]
  common = sorted(set.intersection(*(set(run_series) for run_series in series)))
  if not common:
    return None
  values = np.array([[run_series[iteration] for iteration in common] for run_series in series])
  seeds = [run.config.get("seed", MISSING) for run in runs]
  return Group(label, seeds, np.array(common), values, tuple(runs))


def _state(run: RunFolder) -> list[str]:
  """Returns a remark on a run that has not reached its last iteration."""
  last = run.metrics[-1]["iteration"] if run.metrics else 0
  planned = run.config.get("iterations")
  if last == planned:
    return []
  return [f"{run.workdir}: iteration {last} of {planned} (running, interrupted or ended early)."]


def _differing(configs: list[dict[str, Any]]) -> list[str]:
  """Returns the keys in which configs differ, without IGNORED ones.

  Where a method differs, its numbers count only if they differ between configs of one method.
  """
  keys = dict.fromkeys(key for config in configs for key in config)
  differing = []
  for key in keys:
    method = f"{key.split('.')[0]}.name"
    values: dict[str, set[str]] = {}
    for config in configs:
      name = "" if key == method else str(config.get(method))
      values.setdefault(name, set()).add(repr(config.get(key, MISSING)))
    if not key.startswith(IGNORED) and any(len(of_method) > 1 for of_method in values.values()):
      differing.append(key)
  return differing


def _check_keys(keys: list[str], configs: list[dict[str, Any]]) -> None:
  for key in keys:
    if not any(key in config for config in configs):
      last = key.rsplit(".", 1)[-1]
      near = sorted({k for config in configs for k in config if k.rsplit(".", 1)[-1] == last})
      hint = f" Fix: {' or '.join(near)}." if near else " Fix: a key of the runs' config.json."
      raise RunError(f"--by={key}: no run has this key.{hint}")


def _label(keys: list[str], config: dict[str, Any]) -> str:
  """Returns the values of the keys; a single key that ends in .name needs no mention."""
  if not keys:
    return "all runs"
  if len(keys) == 1 and keys[0].endswith(".name"):
    return str(config.get(keys[0], MISSING))
  return ", ".join(f"{key} = {config.get(key, MISSING)}" for key in keys)


def _group_remarks(label: str, configs: list[dict[str, Any]], workdirs: list[str]) -> list[str]:
  """Returns remarks on a group whose runs differ in more than the seed, or share it."""
  notes = []
  differing = _differing(configs)
  if differing:
    notes.append(f"{label}: its runs also differ in {', '.join(differing)}; add --by to tell them "
                 "apart.")
  workdirs_by_seed: dict[Any, list[str]] = {}
  for config, workdir in zip(configs, workdirs, strict=True):
    workdirs_by_seed.setdefault(config.get("seed"), []).append(workdir)
  for seed, shared in workdirs_by_seed.items():
    if len(shared) > 1:
      notes.append(f"{label}: {' and '.join(shared)} have seed {seed}; they are counted as if "
                   "independent.")
  return notes
