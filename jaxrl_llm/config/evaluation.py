"""Sections of evaluations and checkpoints, and the metrics that an evaluation logs."""

import dataclasses
import re
from collections.abc import Container

from jaxrl_llm.config.task import EvaluationSetConfig
from jaxrl_llm.fields import ConfigError, option, sections, when

SAMPLED = when("samples_heldout", text="evaluation.samples, or samples of a set, above 0")
COMPONENT = "eval/component/"
ACCURACY = re.compile(r"/(accuracy|avg@|pass@)")


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
  """Held-out evaluations during the run."""

  every: int = option(10, "iterations between held-out evaluations", low=1)
  samples: int = option(0, "sampled completions per held-out problem, besides the greedy one",
                        low=0, high=10**5)
  temperature: float = option(1.0, "of the sampled completions", low=1e-3, high=100.0, when=SAMPLED)
  patience: int = option(0, "evaluations without a new best one (checkpoint.best) after which the "
                         "run ends; 0: it never ends early", low=0, when=when("checkpoint.best"))
  sets: tuple = sections(EvaluationSetConfig, "further held-out problems from files, by name; a "
                         "set's metrics are eval/<name>/accuracy and so on")

  def check(self, cfg) -> None:
    """Refuses a temperature for a set without sampled completions."""
    del cfg
    for name, section in self.sets:
      samples = self.samples if section.samples is None else section.samples
      if section.temperature is not None and not samples:
        raise ConfigError(
            f"evaluation.sets.{name}.temperature = {section.temperature}: no completion of the set "
            f"is sampled. Fix: evaluation.sets.{name}.samples, or remove it.")

  @property
  def chosen(self) -> list[tuple[str, EvaluationSetConfig]]:
    """Returns the sets that are not left out by `problems = 0`."""
    return [(name, section) for name, section in self.sets if section.problems]

  def metric_names(self, heldout_problems: int) -> list[str]:
    """Returns the names of what `evaluate` and `sampled_metrics` return, without the metrics of
    only some runs: `component/*`, whose names only the rewards know, `costly` and `too_long`. Where
    a reward does not say what is correct, `reward` takes the place of the accuracies (`measure`).

    Args:
      heldout_problems: of the run's task; 0: none are evaluated.
    """
    sets: list[tuple[str, int | None]] = [("", None)] if heldout_problems else []
    sets += [(name, section.samples) for name, section in self.chosen]
    metrics = []
    for name, samples in sets:
      n = self.samples if samples is None else samples
      greedy = ["eval/accuracy", "eval/accuracy_scored", "eval/reward", "eval/length",
                "eval/truncated", "eval/unscored"]
      sample_metrics = [f"eval/{kind}@{n}{suffix}" for kind in ("avg", "pass")
                 for suffix in ("", "_scored") if n]
      metrics += [set_metric(name, metric) for metric in greedy + sample_metrics]
    return metrics


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """Checkpoints of the full run."""

  every: int = option(10, "iterations between checkpoints", low=1)
  keep: int = option(2, "checkpoints kept; at least 2, so that a torn newest one has a predecessor",
                     low=2)
  best: str = option("eval/accuracy", "metric of the evaluation whose highest value so far has its "
                     "parameters kept in best/; -eval/length: the lowest; none: off; eval/reward "
                     "in place of accuracies, where the reward does not say what is correct")

  @property
  def best_metric(self) -> str | None:
    """Returns the metric of `best`, without its sign; None: off."""
    return None if self.best == "none" else self.best.removeprefix("-")

  def filled(self, evaluation: EvaluationConfig, heldout_problems: int) -> "CheckpointConfig":
    """Returns the section with best = none where nothing is evaluated and the key has its default.
    """
    idle = not evaluation.metric_names(heldout_problems) and not evaluation.patience
    if not idle or self.best != type(self).best:
      return self
    return dataclasses.replace(self, best="none")

  def check(self, cfg) -> None:
    """Refuses a metric that the run's evaluations do not log.

    A component of the user's rewards passes; `Best.update` checks it at the first evaluation.
    """
    if self.best_metric is None:
      return
    patience = cfg.evaluation.patience
    metrics = cfg.evaluation.metric_names(cfg.task.heldout_problems)
    if not metrics:
      waiting, off = [f"checkpoint.best = {self.best!r}"], ["checkpoint.best=none"]
      if patience:
        waiting.append(f"evaluation.patience = {patience}")
        off.append("evaluation.patience=0")
      raise ConfigError(
          f"{' and '.join(waiting)} with task.heldout_problems = 0 and no evaluation.sets: nothing "
          f"is evaluated. Fix: {' and '.join(off)}, or problems to evaluate.")
    component = cfg.reward.name != "task" and self.best_metric.startswith(COMPONENT)
    if not component and self.best_metric not in metrics:
      raise unlogged(self.best, patience, metrics)


def measure(name: str, metrics: Container[str]) -> str:
  """Returns the metric that judges an evaluation by `name`: without accuracies the mean reward."""
  reward = f"{name.rpartition('/')[0]}/reward"
  return reward if name not in metrics and reward in metrics and ACCURACY.search(name) else name


def unlogged(best: str, patience: int, names: list[str]) -> ConfigError:
  """Returns the error for the value of checkpoint.best, where evaluations log `names`."""
  without = " with evaluation.patience=0" if patience else ""
  return ConfigError(
      f"checkpoint.best = {best!r}: evaluations log {', '.join(names)}. Fix: one of them, with a "
      f"minus in front where lower is better, or none{without}.")


def set_metric(name: str, metric: str) -> str:
  """Returns the name that a metric eval/* has for the set of a name: eval/<name>/*."""
  return metric.replace("eval/", f"eval/{name}/", 1) if name else metric
