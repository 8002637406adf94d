"""The summary of a run."""

import numpy as np

from experiments.report.run_folder import RunFolder
from jaxrl_llm.reporting.tables import MISSING, markdown_table

HELDOUT = "held-out accuracy"
ACCURACY, REWARDS = "eval/accuracy", ("eval/reward", "reward/mean")


def summary_table(run: RunFolder) -> str:
  """Returns two columns in Markdown, aligned to read as plain text; "-" where the run has no value.
  """
  return markdown_table(("", "value"), summary_rows(run))


def summary_rows(run: RunFolder) -> list[tuple[str, str]]:
  """Returns the (name, text) pairs of the summary."""
  accuracies, (score, measure) = sampled_accuracies(run), score_of(run)
  rows = [
      *((caption, _first_last_best(run, name)) for name, caption in accuracies.items()),
      (measure + ", greedy" * bool(accuracies), _first_last_best(run, score)),
      ("correct rollouts", _first_last(run, "reward/correct")) if score == ACCURACY else
      ("reward of rollouts", _first_last(run, "reward/mean")),
      ("estimator", _setting(run, "estimator", "name")),
      ("advantage", _setting(run, "advantage", "name")),
      ("aggregation", _setting(run, "aggregation", "name")),
  ]
  if "anchor" in run.config.get("updates", {}):
    rows.append(("anchor", _setting(run, "updates", "anchor")))
  gap = _mean(run, "mismatch/absolute")
  mismatch = [] if np.isnan(gap) else [("sampler against trainer, nats per token", _format(gap))]
  return rows + [
      ("seed", _setting(run, "seed")),
      *((f"accuracy on {name}", _first_last_best(run, metric))
        for name, metric in set_accuracies(run).items()),
      ("dropped by clipping, mean share", _format(_mean(run, "clip/dropped"))),
      ("entropy at the end, nats", _format(_last(run, "policy/entropy"))),
      *mismatch,
      _wall_time(run),
      ("iterations", str(sum(line["iteration"] > 0 for line in run.metrics))),
  ]


def headline(run: RunFolder) -> tuple[str, str] | None:
  """Returns (the last accuracy, what it is an accuracy of and how it began), None without any."""
  for name, caption in (*sampled_accuracies(run).items(), score_of(run),
                        ("reward/correct", "of the rollouts correct"),
                        ("reward/mean", "reward of the rollouts")):
    iterations, values = run.series(name)
    if len(values) and np.isfinite(values[-1]):
      first, last = (f"{x:.4g}" if name in REWARDS else f"{100 * x:.1f} %"
                     for x in (values[0], values[-1]))
      return last, f"{caption} at iteration {iterations[-1]}; {first} at iteration {iterations[0]}"
  return None


def sampled_accuracies(run: RunFolder) -> dict[str, str]:
  """Returns what eval/avg@n of the run's own problems is, the largest n first; empty if none was
  measured.
  """
  counts = {int(key.removeprefix("eval/avg@")) for line in run.metrics for key in line
            if key.startswith("eval/avg@") and key.removeprefix("eval/avg@").isdecimal()}
  measure = score_of(run)[1]
  return {f"eval/avg@{n}": f"{measure} of {n} samples a problem (avg@{n})"
          for n in sorted(counts, reverse=True)}


def score_of(run: RunFolder) -> tuple[str, str]:
  """Returns the metric that judges the run's own problems, and what it is: the mean reward where
  the reward does not say what is correct.
  """
  if not len(run.series(ACCURACY)[0]) and len(run.series(REWARDS[0])[0]):
    return REWARDS[0], "held-out reward"
  reward = run.config.get("reward", {})
  name = str(reward.get("name", "task")) if isinstance(reward, dict) else "task"
  if "task" in [part.strip() for part in name.split(",")]:
    return ACCURACY, HELDOUT
  return ACCURACY, f"held out, correct by the reward {name}"


def set_accuracies(run: RunFolder) -> dict[str, str]:
  """Returns the metric eval/<name>/accuracy of each evaluation set that the run logged, by name."""
  metric_of_set = {key.split("/")[1]: key for line in run.metrics for key in line
                   if key.startswith("eval/") and key.endswith("/accuracy") and key.count("/") == 2}
  return dict(sorted(metric_of_set.items()))


def _wall_time(run: RunFolder) -> tuple[str, str]:
  """Returns the summary's row of the full run's time, or of its iterations in an older run."""
  clock, seconds = _finite(run, "time/elapsed"), _finite(run, "time/iteration")
  if len(clock):
    return "wall time", _duration(clock[-1])
  if len(seconds):
    return "wall time of the iterations", _duration(np.sum(seconds))
  return "wall time", MISSING


def _setting(run: RunFolder, *keys: str) -> str:
  setting = run.config
  for key in keys:
    if not isinstance(setting, dict) or key not in setting:
      return MISSING
    setting = setting[key]
  return str(setting)


def _finite(run: RunFolder, name: str) -> np.ndarray:
  values = run.series(name)[1]
  return values[np.isfinite(values)]


def _mean(run: RunFolder, name: str) -> float:
  values = _finite(run, name)
  return np.mean(values) if len(values) else np.nan


def _last(run: RunFolder, name: str) -> float:
  values = run.series(name)[1]
  return values[-1] if len(values) else np.nan


def _first_last(run: RunFolder, name: str) -> str:
  values = run.series(name)[1]
  return f"{_format(values[0])} -> {_format(values[-1])}" if len(values) else MISSING


def _first_last_best(run: RunFolder, name: str) -> str:
  iterations, values = run.series(name)
  text = _first_last(run, name)
  if not np.isfinite(values).any():
    return text
  best = np.nanargmax(values)
  return f"{text}, best {_format(values[best])} at iteration {iterations[best]}"


def _format(value: float) -> str:
  return MISSING if np.isnan(value) else f"{value:.4g}"


def _duration(seconds: float) -> str:
  minutes, remainder = divmod(round(float(seconds)), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours} h {minutes:02d} min"
  return f"{minutes} min {remainder:02d} s" if minutes else f"{seconds:.1f} s"
