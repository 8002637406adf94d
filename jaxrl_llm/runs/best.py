"""The parameters of the best evaluation so far, and the decision to end a run early."""

import math
from pathlib import Path

from jaxrl_llm.config import CheckpointConfig
from jaxrl_llm.config.evaluation import measure, unlogged
from jaxrl_llm.parallel import processes
from jaxrl_llm.store import checkpoints, folders
from jaxrl_llm.store.checkpoints import BEST
from jaxrl_llm.types import Params


class Best:
  """Keeps workdir/best/<iteration>, and counts the evaluations since then.

  An evaluation is the best if it is strictly better than all before; without accuracies it goes by
  the mean reward. With checkpoint.best = none nothing is kept. Everything but the parameters
  follows from metrics.jsonl, so that a resumed run decides as if nothing had interrupted it.

  Args:
    checkpoint: section of the config.
    patience: `evaluation.patience`.
    directory: directory of the run.

  Attributes:
    iteration: of the best evaluation; None: there was none.
  """

  def __init__(self, checkpoint: CheckpointConfig, patience: int, directory: Path):
    self._directory, self._patience = folders.path_of(directory), patience
    self._metric, self._name = checkpoint.best, checkpoint.best_metric
    self._sign = -1 if checkpoint.best.startswith("-") else 1
    self._forget()

  def _forget(self) -> None:
    self.iteration: int | None = None
    self._by, self._value, self._since = self._name, -math.inf, 0
    self._needed: int | None = None  # the best at the last checkpoint

  @property
  def stop(self) -> bool:
    """Returns whether `evaluation.patience` evaluations in a row were not the best."""
    return bool(self._patience) and self._since >= self._patience

  def resume(self, lines: list[dict], last: int) -> None:
    """Reads the record of a run that resumes after iteration `last`.

    All folders but the best one are dropped: later evaluations are made again. All stay if the best
    one is missing, which happens only where a torn checkpoint sent the run further back.

    Args:
      lines: of metrics.jsonl, in order, none after `last`.
    """
    self._forget()
    for line in lines:
      self._judge(line["iteration"], line)
    saved_iterations = checkpoints.iterations(self._directory, BEST)
    if self.iteration in saved_iterations or self.iteration is None:
      self._drop([iteration for iteration in saved_iterations if iteration != self.iteration])
    self._needed = self.iteration

  def update(self, iteration: int, metrics: dict[str, float], params: Params) -> None:
    """Judges an evaluation, and writes the parameters, completely or not at all, if it is the best.

    Args:
      params: the trained leaves.

    Raises:
      ConfigError: the first evaluation, which scored some completions, lacks the metric.
    """
    by = None if self._name is None else measure(self._name, metrics)
    if by is not None and by not in metrics and not iteration and metrics.get("eval/unscored") != 1:
      raise unlogged(self._metric, self._patience, sorted(metrics))
    if self._judge(iteration, metrics):
      tree = {"train": {"params": params}}  # where a command looks for them
      checkpoints.save_params(self._directory / BEST / str(iteration), tree)

  def prune(self) -> None:
    """Keeps the best one and the one that was the best at the last call, and removes the others.

    Call it before each checkpoint, when the checkpoint before is complete: a run resumed from
    that one needs what was the best then.
    """
    saved_iterations = checkpoints.iterations(self._directory, BEST)
    if self.iteration in saved_iterations:
      self._drop([iteration for iteration in saved_iterations
                  if iteration not in (self.iteration, self._needed)])
    self._needed = self.iteration

  def _judge(self, iteration: int, metrics: dict[str, float]) -> bool:
    """Returns whether the evaluation is the best so far, and records it."""
    if self._name is None or not any(name.startswith("eval/") for name in metrics):
      return False
    by = measure(self._name, metrics)
    if by != self._by:  # the first evaluation without a failure tells what the reward says
      self._by, self._value, self._since = by, -math.inf, 0
    value = self._sign * metrics.get(by, math.nan)  # absent where no row was scored
    if not value > self._value:  # also if it is not a number
      self._since += 1
      return False
    self.iteration, self._value, self._since = iteration, value, 0
    return True

  def _drop(self, iterations: list[int]) -> None:
    for iteration in iterations if processes.is_main() else ():
      folders.remove(self._directory / BEST / str(iteration))
