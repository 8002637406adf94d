"""Metrics of sampled completions, with intervals, and their tables."""

from typing import NamedTuple

import numpy as np

from experiments.tables_lib.benchmark.intervals import bootstrap_interval, maj_at_k
from jaxrl_llm.reporting.metrics_at_k import pass_at_k
from jaxrl_llm.reporting.tables import markdown_table


def summarize(lines: list[dict], seed: int = 0) -> dict[str, dict]:
  """Returns metrics of a benchmark: {"value", "low", "high"}, with 95 % intervals of a bootstrap
  over problems.

  - avg@n: share of correct samples, n per problem.
  - pass@k: unbiased, for powers of two up to n.
  - maj@k: of the first k samples. Right answers are one group, the others are grouped by their
    text, and samples without an answer do not vote.

  An unscored sample counts as wrong in all three; it votes for its answer. If there are any, each
  metric also has a value of only the scored samples, `avg@n (scored)`: problems with fewer than k
  of them are left out of pass@k, and problems without any are left out of all three. Lengths are in
  tokens, the stop token included; distinct answers are per problem.
  """
  samples = [line["samples"] for line in lines]
  metric_values, scored, plain = _at_k(samples), _at_k(samples, scored=True), _plain(samples)
  out = {}
  for name, values in metric_values.items():
    out[name] = _with_interval(values, seed)
    if plain["unscored samples"]:
      out[f"{name} (scored)"] = _with_interval(scored[name], seed)
  return out | {name: bare(value) for name, value in plain.items()}


class _Values(NamedTuple):
  """Values whose mean is a metric, and the array that its bootstrap resamples by problem."""

  values: np.ndarray
  resampled: np.ndarray


def _at_k(samples: list[list[dict]], scored: bool = False) -> dict[str, _Values]:
  """Returns avg@n, pass@k and maj@k of each problem's samples, or of only the scored ones; NaN for
  a problem that has too few.
  """
  def scored_samples(row: list[dict]) -> list[dict]:
    return [s for s in row if not scored or s["unscored_reason"] is None]

  n = max(map(len, samples))
  correct = np.full((len(samples), n), np.nan)
  for problem, row in enumerate(map(scored_samples, samples)):
    correct[problem, :len(row)] = [s["correct"] for s in row]
  metrics = {f"avg@{n}": _Values(np.nanmean(correct[~np.isnan(correct[:, 0])], 1), correct)}
  powers = [2**i for i in range(n.bit_length())]
  for k in powers:
    values = np.array([_pass(scored_samples(row), k) for row in samples])
    metrics[f"pass@{k}"] = _Values(values, values)
  for k in powers[1:]:
    values = np.array([_vote(scored_samples(row[:k])) for row in samples])
    metrics[f"maj@{k}"] = _Values(values, values)
  return metrics


def _with_interval(estimate: _Values, seed: int) -> dict[str, float | None]:
  """Returns the entry of a metric with its bootstrap interval."""
  low, high = bootstrap_interval(estimate.resampled, seed=seed)
  entry = {"value": _mean(estimate.values), "low": low, "high": high}
  return {key: None if np.isnan(x) else x for key, x in entry.items()}


def bare(value: float) -> dict[str, float | None]:
  """Returns the entry of a metric without an interval."""
  return {"value": None if np.isnan(value) else value, "low": None, "high": None}


def _plain(samples: list[list[dict]]) -> dict[str, float]:
  """Returns means and counts without an interval; `samples` holds each problem's samples."""
  flat = [sample for row in samples for sample in row]
  lengths = np.array([s["length"] for s in flat], float)
  right = np.array([s["correct"] for s in flat])
  answers = [{s["answer"] for s in row} - {None} for row in samples]
  reasons = [s["unscored_reason"] for s in flat if s["unscored_reason"] is not None]
  plain = {
      "mean length": _mean(lengths),
      "mean length of correct samples": _mean(lengths[right]),
      "truncated share": _mean(np.array([s["truncated"] for s in flat], float)),
      "samples without an answer": _mean(np.array([s["answer"] is None for s in flat], float)),
      "distinct answers": _mean(np.array([len(distinct) for distinct in answers], float)),
      "unscored samples": len(reasons),
      "problems": len(samples),
  }
  if costly := sum(s.get("rung") == "costly" for s in flat):
    plain["wrong because too costly to check"] = costly
  return plain | {f"unscored: {why}": reasons.count(why) for why in sorted(set(reasons))}


def _pass(samples: list[dict], k: int) -> float:
  """Returns pass@k of a problem; NaN with fewer than k samples."""
  if len(samples) < k:
    return float("nan")
  return pass_at_k(len(samples), sum(s["correct"] for s in samples), k)


def _vote(samples: list[dict]) -> float:
  """Returns maj@k of k samples of a problem; NaN without any."""
  keys = [("right",) if s["correct"] else s["answer"] for s in samples]
  return maj_at_k(keys, [s["correct"] for s in samples]) if samples else float("nan")


def _mean(values: np.ndarray) -> float:
  """Returns the mean of the values that are not NaN; NaN if there is none."""
  values = values[~np.isnan(values)]
  return float(np.mean(values)) if len(values) else float("nan")


def table(metrics: dict[str, dict]) -> str:
  """Returns Markdown; "-" where there is no value or interval."""
  rows = [(name, _number(entry["value"]), _interval(entry)) for name, entry in metrics.items()]
  return markdown_table(("", "value", "95 % interval"), rows)


def joint_table(metrics_of_set: dict[str, dict[str, dict]]) -> str:
  """Returns a line for each set: avg@n with its interval, and pass@k and maj@k of the largest k."""
  rows = []
  for name, metrics in metrics_of_set.items():
    first = next(iter(metrics))
    last = {kind: [metric for metric in metrics if metric.startswith(kind) and " " not in metric]
            for kind in ("pass@", "maj@")}
    best_k = [f"{names[-1]}: {_number(metrics[names[-1]]['value'])}" if names else "-"
              for names in last.values()]
    rows.append((name or "task", _number(metrics["problems"]["value"]),
                 f"{first}: {_number(metrics[first]['value'])}", _interval(metrics[first]), *best_k,
                 _number(metrics["unscored samples"]["value"])))
  return markdown_table(("set", "problems", "avg", "95 % interval", "pass", "maj",
                         "unscored samples"), rows)


def _interval(entry: dict[str, float | None]) -> str:
  if entry["low"] is None:
    return "-"
  return f"{_number(entry['low'])} to {_number(entry['high'])}"


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:.4g}"
