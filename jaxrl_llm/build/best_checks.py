"""Which metrics a run's evaluations log, and whether `checkpoint.best` is one of them."""

import dataclasses

from jaxrl_llm.build.evaluation_sets import chosen, named
from jaxrl_llm.config import Config, ConfigError

COMPONENT = "eval/component/"


def metric_names(cfg: Config) -> list[str]:
  """Names of what `evaluate` and `sampled_metrics` return, without those that only some runs have:
  `component/*`, whose names only the rewards know, `costly` and `too_long`.
  """
  sets: list[tuple[str, int | None]] = [("", None)] if cfg.task.heldout_problems else []
  sets += [(name, one.samples) for name, one in chosen(cfg)]
  found = []
  for name, own in sets:
    n = cfg.evaluation.samples if own is None else own
    greedy = ["eval/accuracy", "eval/accuracy_scored", "eval/length", "eval/truncated",
              "eval/unscored"]
    sampled = [f"eval/{kind}@{n}{of}" for kind in ("avg", "pass") for of in ("", "_scored") if n]
    found += [named(name, metric) for metric in greedy + sampled]
  return found


def parsed(name: str) -> tuple[str | None, int]:
  """(metric, 1 if higher is better or -1) of the value of checkpoint.best; the metric of "none" is
  None.
  """
  if name == "none":
    return None, 1
  return (name[1:], -1) if name.startswith("-") else (name, 1)


def filled(cfg: Config) -> Config:
  """The config with checkpoint.best = none where nothing is evaluated and the key has its default.
  """
  checkpoint = cfg.checkpoint
  idle = not metric_names(cfg) and not cfg.evaluation.patience
  if not idle or checkpoint.best != type(checkpoint).best:
    return cfg
  return dataclasses.replace(cfg, checkpoint=dataclasses.replace(checkpoint, best="none"))


def check(cfg: Config) -> None:
  """Refuses a metric that the run's evaluations do not log.

  A component of the user's own rewards passes; `Best.update` checks it at the first evaluation.

  Raises:
    ConfigError: listing those that they log, or the keys that wait for an evaluation.
  """
  name, _ = parsed(cfg.checkpoint.best)
  if name is not None and not metric_names(cfg):
    waiting = [f"checkpoint.best = {cfg.checkpoint.best!r}"]
    off = ["checkpoint.best=none"]
    if cfg.evaluation.patience:
      waiting.append(f"evaluation.patience = {cfg.evaluation.patience}")
      off.append("evaluation.patience=0")
    raise ConfigError(
        f"{' and '.join(waiting)} with task.heldout_problems = 0 and no evaluation.sets: nothing "
        f"is evaluated. Fix: {' and '.join(off)}, or problems to evaluate.")
  if cfg.reward.name != "task" and str(name).startswith(COMPONENT):
    return
  if name is not None and name not in metric_names(cfg):
    raise unknown(cfg, metric_names(cfg))


def unknown(cfg: Config, names: list[str]) -> ConfigError:
  """The error for the value of checkpoint.best, where evaluations log `names`."""
  patience = " with evaluation.patience=0" if cfg.evaluation.patience else ""
  return ConfigError(
      f"checkpoint.best = {cfg.checkpoint.best!r}: evaluations log {', '.join(names)}. Fix: one of "
      f"them, with a minus in front where lower is better, or none{patience}.")
