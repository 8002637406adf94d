"""Columns shared by tables of training runs: accuracy over seeds, and collapse.

Greedy accuracy is a threshold on probabilities; newer tables have sampled accuracy next to it
(SAMPLED_HEADER).
"""

from collections.abc import Sequence

import numpy as np

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import sweep_results
from experiments.tables_lib.compare import interval
from jaxrl_llm.reporting import tables

COLLAPSE = 0.2  # accuracy that a run loses from its best to its last evaluation
LEARNT = 0.9  # accuracy from which on a run counts as having learnt its task
# The mean over the run is low for a method that learns late, and for one that collapses.
HEADER = ("final accuracy", "best accuracy", "mean over the run", "collapsed",
          "entropy at the end, nats", "gradient norm", "without gradient, %")
SAMPLED = "eval/avg@8"
SAMPLED_HEADER = ("n", "mean over the run", "at the end", "best", "drop from best",
                  "iteration of 90 %", "greedy at the end", "ratio/ess", "without gradient, %",
                  "entropy at the end, nats", "commit")


def measure_sampled(run: RunFolder) -> dict:
  """Returns sampled and greedy accuracy by iteration, and what else SAMPLED_HEADER needs.

  Raises:
    LookupError: the run sampled no 8 completions for each held-out problem.
  """
  iterations, sampled = run.series(SAMPLED)
  if not len(sampled):
    raise LookupError(f"no {SAMPLED} in {run.workdir}. Fix: evaluation.samples=8")
  greedy = run.series("eval/accuracy")[1]
  entropy, norm, dropped, share = (_finite(run, name) for name in (
      "policy/entropy", "optimizer/grad_norm", "clip/dropped", "ratio/ess"))
  return {
      "iterations": iterations.tolist(), "sampled": sampled.round(5).tolist(),
      "greedy": greedy.round(5).tolist(), "entropy": float(entropy[-1]),
      "gradient_norm": float(np.mean(norm)), "without_gradient": float(np.mean(dropped)),
      "ess": float(np.mean(share)),
      "diverged": len(norm) < len(run.series("optimizer/grad_norm")[1]),
  }


def mean_sampled(measured: dict) -> float:
  """Returns the mean of a run's sampled accuracies; one that ended early keeps its last policy's
  only as far as it came.
  """
  return float(np.mean(measured["sampled"]))


def end_sampled(measured: dict) -> float:
  """Returns a run's last sampled accuracy."""
  return float(measured["sampled"][-1])


# By the two measures of `statistics.MEASURES`: its name in a table, and what reads it.
MEASURES = {"mean": ("mean over the run", mean_sampled), "end": ("at the end", end_sampled)}


def best_step(results: dict[str, dict], names: dict[str, str]) -> str | None:
  """Returns the step of a screening with the highest mean over the run; None before all have
  results.

  Args:
    results: by name, as `sweep_results.read` returns them.
    names: of the screening's runs, by step.
  """
  if not results.keys() >= set(names.values()):
    return None
  return max(names, key=lambda step: mean_sampled(results[names[step]]["measured"]))


def screening_cell(result: dict | None) -> str:
  """Returns "0.74, 0.86": a run's mean over the run and its last sampled accuracy; None: "-"."""
  if result is None:
    return tables.MISSING
  measured = result["measured"]
  return f"{mean_sampled(measured):.2f}, {measured['sampled'][-1]:.2f}"


def learnt_at(measured: dict) -> float:
  """Returns the first iteration whose sampled accuracy is LEARNT or more; infinite if none is."""
  reached = [iteration for iteration, value in
             zip(measured["iterations"], measured["sampled"], strict=True) if value >= LEARNT]
  return float(reached[0]) if reached else float(np.inf)


def sampled_row(records: Sequence[dict]) -> tuple[str, ...]:
  """Returns the cells below SAMPLED_HEADER: the mean over seeds, and the lowest and highest."""
  measured = [record["measured"] for record in records]
  curves = padded([entry["sampled"] for entry in measured])
  final, best = curves[:, -1], curves.max(1)
  learnt = [learnt_at(entry) for entry in measured]
  reached = [value for value in learnt if np.isfinite(value)]
  when = f"{np.median(learnt):.0f}" if len(reached) == len(learnt) else (
      f"in {len(reached)} of {len(learnt)}")
  commits = dict.fromkeys(sweep_results.short_commit(record)[:7] for record in records)
  return (str(len(records)), span(curves.mean(1)), span(final), span(best),
          span(best - final), when, span([entry["greedy"][-1] for entry in measured]),
          span([entry["ess"] for entry in measured]),
          f"{100 * np.mean([entry['without_gradient'] for entry in measured]):.1f}",
          span([entry["entropy"] for entry in measured]), ", ".join(commits))


def panel_curves(records: Sequence[dict]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns (iterations, accuracy [S, iterations]) of a method's runs, for `plots.plot_panels`: of
  the sampled completions and of the greedy ones.
  """
  measured = [record["measured"] for record in records]
  times = np.array(max((entry["iterations"] for entry in measured), key=len))
  return {kind: (times, padded([entry[kind] for entry in measured]))
          for kind in ("sampled", "greedy")}


def span(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
  """Returns "0.93 (0.90 to 0.95)": mean, lowest and highest, with so many digits after the point; a
  single value without a range.
  """
  values = np.asarray(values, float)
  mean, low, high = (f"{value:.{digits}f}" for value in (values.mean(), values.min(), values.max()))
  return mean if len(values) == 1 else f"{mean} ({low} to {high})"


def measure(run: RunFolder) -> dict:
  """Returns held-out accuracy by iteration, and what the other columns of HEADER need.

  The last line of a run whose gradient was not finite has numbers that are none: they are left out.
  """
  iterations, accuracy = run.series("eval/accuracy")
  entropy, norm, dropped, drift, length = (_finite(run, name) for name in (
      "policy/entropy", "optimizer/grad_norm", "clip/dropped", "kl/current_behavior",
      "rollout/length"))
  return {
      "iterations": iterations.tolist(),
      "accuracy": accuracy.round(6).tolist(),
      "entropy": float(entropy[-1]),
      "gradient_norm": float(np.mean(norm)),
      "without_gradient": float(np.mean(dropped)),
      "kl_current_behavior": float(np.mean(drift[-5:])),
      "length": float(length[-1]),
      "diverged": len(norm) < len(run.series("optimizer/grad_norm")[1]),
  }


def _finite(run: RunFolder, name: str) -> np.ndarray:
  values = run.series(name)[1]
  return values[np.isfinite(values)]


def with_tokens(run: RunFolder) -> dict:
  """Returns held-out accuracy, and the tokens sampled up to each evaluation."""
  iterations, accuracy = run.series("eval/accuracy")
  sampled_iterations, tokens = run.series("rollout/tokens")
  if run.config["dynamic_sampling"]["enabled"]:
    # Includes the tokens of dropped groups.
    sampled_iterations, tokens = run.series("dynamic_sampling/tokens")
  total = np.cumsum(tokens)
  return {"iterations": iterations.tolist(), "accuracy": accuracy.round(6).tolist(),
          "tokens": [int(total[sampled_iterations <= iteration][-1]) if iteration else 0
                     for iteration in iterations]}


def tokens_until(runs: Sequence[dict]) -> str:
  """Returns the mean number of tokens, in thousands, at the first evaluation of LEARNT or more.

  If some runs never get there, it returns how many do.
  """
  learnt = [np.array(run["accuracy"]) >= LEARNT for run in runs]
  if not all(map(np.any, learnt)):
    return f"in {sum(map(np.any, learnt))} of {len(runs)} runs"
  return interval(np.array([run["tokens"][int(np.argmax(when))] / 1000
                            for run, when in zip(runs, learnt, strict=True)]))


def curves(runs: Sequence[dict]) -> tuple[np.ndarray, np.ndarray]:
  """Returns (iterations [I], accuracy [S, I]) of runs that differ in their seed.

  The policy of a run that ended early counts as if it had stayed as it was.
  """
  return longest(runs, "iterations"), padded([run["accuracy"] for run in runs])


def longest(runs: Sequence[dict], key: str) -> np.ndarray:
  """Returns the [I] of the longest run."""
  return np.array(max((run[key] for run in runs), key=len))


def padded(rows: Sequence[list]) -> np.ndarray:
  """Returns [S, I] of rows that may end early, and then keep their last value."""
  length = max(map(len, rows))
  return np.array([row + row[-1:] * (length - len(row)) for row in rows], float)


def row(runs: Sequence[dict]) -> tuple[str, ...]:
  """Returns the cells below HEADER: means over seeds with their intervals.

  A run whose gradient was not finite has collapsed, whatever its last evaluation was before that.
  """
  _, accuracy = curves(runs)
  final, best = accuracy[:, -1], accuracy.max(1)
  collapsed = [fell or run.get("diverged", False)
               for fell, run in zip(best - final > COLLAPSE, runs, strict=True)]
  entropy, norm, dropped = (np.array([run[key] for run in runs])
                            for key in ("entropy", "gradient_norm", "without_gradient"))
  return (interval(final), interval(best), interval(accuracy.mean(1)),
          f"{sum(map(bool, collapsed))} of {len(runs)}", interval(entropy),
          interval(norm), interval(100 * dropped))
