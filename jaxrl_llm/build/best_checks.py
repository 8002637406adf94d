"""Checks that `checkpoint.best` is one of the metrics that a run's evaluations log."""

import dataclasses

from jaxrl_llm.build.evaluation_sets import chosen, named
from jaxrl_llm.config import CheckpointConfig, ConfigError, EvaluationConfig

COMPONENT = "eval/component/"


def metric_names(heldout_problems: int, evaluation: EvaluationConfig) -> list[str]:
  """Returns the names of what `evaluate` and `sampled_metrics` return, without the metrics of only
  some runs: `component/*`, whose names only the rewards know, `costly` and `too_long`.

  Args:
    heldout_problems: of the run's own task; 0: none are evaluated.
  """
  sets: list[tuple[str, int | None]] = [("", None)] if heldout_problems else []
  sets += [(name, section.samples) for name, section in chosen(evaluation)]
  metrics = []
  for name, samples in sets:
    n = evaluation.samples if samples is None else samples
    greedy = ["eval/accuracy", "eval/accuracy_scored", "eval/length", "eval/truncated",
              "eval/unscored"]
    sampled = [f"eval/{kind}@{n}{scored}" for kind in ("avg", "pass")
               for scored in ("", "_scored") if n]
    metrics += [named(name, metric) for metric in greedy + sampled]
  return metrics


def parsed(name: str) -> tuple[str | None, int]:
  """Returns (metric, 1 if higher is better or -1) of the value of checkpoint.best; the metric of
  "none" is None.
  """
  if name == "none":
    return None, 1
  return (name[1:], -1) if name.startswith("-") else (name, 1)


def filled(checkpoint: CheckpointConfig, evaluation: EvaluationConfig,
           heldout_problems: int) -> CheckpointConfig:
  """Returns the section with best = none where nothing is evaluated and the key has its default."""
  idle = not metric_names(heldout_problems, evaluation) and not evaluation.patience
  if not idle or checkpoint.best != type(checkpoint).best:
    return checkpoint
  return dataclasses.replace(checkpoint, best="none")


def check(best: str, evaluation: EvaluationConfig, heldout_problems: int, reward: str) -> None:
  """Refuses a metric that the run's evaluations do not log.

  A component of the user's own rewards passes; `Best.update` checks it at the first evaluation.

  Args:
    best: checkpoint.best.
    reward: reward.name.

  Raises:
    ConfigError: listing the metrics that they log, or the keys that wait for an evaluation.
  """
  name, _ = parsed(best)
  logged = metric_names(heldout_problems, evaluation)
  if name is not None and not logged:
    waiting = [f"checkpoint.best = {best!r}"]
    off = ["checkpoint.best=none"]
    if evaluation.patience:
      waiting.append(f"evaluation.patience = {evaluation.patience}")
      off.append("evaluation.patience=0")
    raise ConfigError(
        f"{' and '.join(waiting)} with task.heldout_problems = 0 and no evaluation.sets: nothing "
        f"is evaluated. Fix: {' and '.join(off)}, or problems to evaluate.")
  if reward != "task" and str(name).startswith(COMPONENT):
    return
  if name is not None and name not in logged:
    raise unknown(best, evaluation.patience, logged)


def unknown(best: str, patience: int, names: list[str]) -> ConfigError:
  """Returns the error for the value of checkpoint.best, where evaluations log `names`."""
  without = " with evaluation.patience=0" if patience else ""
  return ConfigError(
      f"checkpoint.best = {best!r}: evaluations log {', '.join(names)}. Fix: one of them, with a "
      f"minus in front where lower is better, or none{without}.")
