"""What looks at a run while it goes on, such as a report or warnings, and changes nothing in it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_llm.runs.evaluate import Evaluation
from jaxrl_llm.runs.rollout_batch import RolloutBatch
from jaxrl_llm.types import Params
from jaxrl_llm.wiring.evaluation_sets import EvaluationSet
from jaxrl_llm.wiring.loop import Loop


class Observed(NamedTuple):
  """The run that an observer is made for.

  Attributes:
    loop: parts of the run.
    heldout: the first set that is evaluated; None: nothing is.
    start_params: makes or finds the parameters of the warm start, as the model reads them.
    directory: of the run.
  """

  loop: Loop
  heldout: EvaluationSet | None
  start_params: Callable[[], Params]
  directory: Path


class Observer:
  """The base of observers, which does nothing. Each process has one, and calls it alike but for
  `written`. What it samples must have keys and rows of its own, so that the run stays the same.
  """

  def __init__(self, run: Observed):
    self.run = run

  def evaluated(self, iteration: int, params: Params, evaluation: Evaluation) -> None:
    """Sees an evaluation of the first set, 0 being that of the warm start; `params` as the model
    reads them.
    """

  def sampled(self, iteration: int, batch: RolloutBatch) -> None:
    """Sees an iteration's completions and verdicts, on the host."""

  def written(self, iteration: int, values: dict[str, float]) -> None:
    """Sees an iteration's metrics when their line is on disk, in process 0."""

  def rested(self) -> None:
    """Called between two iterations, when something longer disturbs least."""

  def interrupted(self, error: BaseException) -> None:
    """Sees what ends the run before its end."""

  def finished(self, iteration: int, params: Params, evaluation: Evaluation | None) -> None:
    """Sees the last parameters, and their evaluation; None: nothing is evaluated."""


class Observers(Observer):
  """All observers of a run, in order.

  Attributes:
    last: (iteration, evaluation) of the last call of `evaluated`; None: there was none.
  """

  def __init__(self, run: Observed, makers: Sequence[Callable[[Observed], Observer]]):
    super().__init__(run)
    self._all = [make(run) for make in makers]
    self.last: tuple[int, Evaluation] | None = None

  def evaluated(self, iteration: int, params: Params, evaluation: Evaluation) -> None:
    self.last = iteration, evaluation
    for observer in self._all:
      observer.evaluated(iteration, params, evaluation)

  def sampled(self, iteration: int, batch: RolloutBatch) -> None:
    for observer in self._all:
      observer.sampled(iteration, batch)

  def written(self, iteration: int, values: dict[str, float]) -> None:
    for observer in self._all:
      observer.written(iteration, values)

  def rested(self) -> None:
    for observer in self._all:
      observer.rested()

  @contextlib.contextmanager
  def until_interrupted(self) -> Iterator[None]:
    """Tells of the error, Ctrl-C or signal that ends what is inside, and passes it on."""
    try:
      yield
    except BaseException as error:
      for observer in self._all:
        observer.interrupted(error)
      raise

  def finished(self, iteration: int, params: Params, evaluation: Evaluation | None) -> None:
    for observer in self._all:
      observer.finished(iteration, params, evaluation)
