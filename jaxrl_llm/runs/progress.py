"""Writes the report of a run while it trains, when it is interrupted, and at its end."""

import contextlib
import itertools
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from jaxrl_llm.parallel import processes
from jaxrl_llm.reporting import html, reader, strips, tables, writers
from jaxrl_llm.runs import evaluate
from jaxrl_llm.runs.evaluate import Evaluation
from jaxrl_llm.types import Params
from jaxrl_llm.wiring.evaluation_sets import EvaluationSet
from jaxrl_llm.wiring.loop import Loop

SAMPLES = 12  # held-out completions shown in the report
SPACING = 20  # durations of a refresh between two of them, so that they take 5 % of the time
logger = logging.getLogger(__name__)


class Progress:
  """Writes heldout.jsonl, samples.json, curves.png and report.html.

  It evaluates nothing that the run evaluates anyway. A run resumed from a checkpoint lacks the
  completions from before its training and makes them once. After an interruption the completions
  are from the last refresh.

  Args:
    heldout: the problems whose completions are shown; None: nothing is evaluated.
    start_params: makes or finds the parameters of the warm start, as the model reads them. They
      are not held between two reports.
  """

  def __init__(self, loop: Loop, heldout: EvaluationSet | None, start_params: Callable[[], Params],
               directory: Path):
    self._loop, self._heldout = loop, heldout
    self._start_params, self._directory = start_params, directory
    self._before: Evaluation | None = None
    self._last: tuple[int, Evaluation] | None = None
    self._written: float | None = None  # when the report was last refreshed
    self._took = 0.0

  def evaluated(self, iteration: int, params: Params, evaluation: Evaluation) -> None:
    """Takes an evaluation, and refreshes the report if enough time has passed since the last time.

    The evaluation of iteration 0 is shown by `first_report`, after the first iteration.

    Args:
      iteration: after which it was made; 0: after the warm start.
      params: that it was made with, as the model reads them.
    """
    if iteration == 0:
      self._before = evaluation
    self._last = iteration, evaluation
    if processes.is_main():
      with _warned_only():
        rows = zip(evaluation.problems, evaluation.texts, evaluation.correct, strict=True)
        strips.add(self._directory, iteration,
                   [(problem.prompt, problem.answer, text, bool(correct))
                    for problem, text, correct in itertools.islice(rows, strips.PROBLEMS)])
    if iteration == 0:
      return
    now = time.perf_counter()
    last = iteration == self._loop.schedule.iterations
    due = self._written is None or now - self._written >= SPACING * self._took
    # After the last one comes `finish`. The clocks of several processes need not agree.
    if last or not processes.from_main("report due", lambda: due):
      return
    self._refresh(iteration, params, evaluation)

  def first_report(self) -> None:
    """Shows the evaluation of iteration 0, once. Called after the first iteration, which would else
    wait for the plots to be imported.
    """
    if self._written is None and self._before is not None:
      self._refresh(0, None, self._before)

  def _refresh(self, iteration: int, params: Params | None, evaluation: Evaluation) -> None:
    now = time.perf_counter()
    with _warned_only():
      self._write(self._samples(iteration, params, evaluation))
    self._written = time.perf_counter()
    self._took = self._written - now

  @contextlib.contextmanager
  def until_interrupted(self):
    """Writes the report if an error, Ctrl-C or a signal ends what is inside, and passes it on."""
    try:
      yield
    except BaseException as error:
      with _warned_only(error):
        if processes.is_main():
          html.write_report(self._directory, f"interrupted by {type(error).__name__}")
      raise

  def finish(self, iteration: int, params: Params) -> dict[str, float]:
    """Writes the last report and prints the summary.

    Args:
      iteration: the last one.
      params: after it, as the model reads them.

    Returns:
      The metrics of the greedy evaluation of these parameters on the problems that are shown.
    """
    early = iteration < self._loop.schedule.iterations  # only evaluation.patience ends a run before
    state = "ended early" if early else "finished"
    if self._heldout is None:
      self._write(None, state)
      self._print()
      return {}
    if self._last is not None and self._last[0] == iteration:
      evaluation = self._last[1]
    else:
      evaluation = self._evaluate(params)
    self._write(self._samples(iteration, params, evaluation), state)
    self._print()
    return evaluation.metrics

  def _print(self) -> None:
    """Prints the summary, in process 0."""
    if processes.is_main():
      tqdm.write(tables.summary_table(reader.read_run(self._directory)))
      tqdm.write(f"plot: {self._directory / 'curves.png'}\n"
                 f"report: {self._directory / 'report.html'}")

  def _evaluate(self, params: Params) -> Evaluation:
    assert self._heldout is not None, "without problems, nothing asks for an evaluation"
    return evaluate.evaluate(self._heldout, self._loop.source.sampler, params)

  def _samples(self, iteration: int, params: Params | None, evaluation: Evaluation) -> dict:
    """Returns completions from before training and of `evaluation`.

    Args:
      params: of the evaluation; None: the start's, which need not be read, as nothing changed.
    """
    assert self._heldout is not None, "without problems, there are no completions"
    start = None if params is None else self._start_params()
    if self._before is None:
      assert start is not None, "the first report shows an evaluation of the start"
      self._before = self._evaluate(start)
    tokenizer: PreTrainedTokenizerBase = self._heldout.task.tokenizer
    count = min(SAMPLES, len(self._heldout.problems) // processes.count())
    return {
        name: evaluate.samples(self._loop.learner, tokenizer, params, start, record, count)
        for name, record in (("before", self._before), ("after", evaluation))
    } | {"iteration": iteration}

  def _write(self, samples: dict | None, *state: str) -> None:
    """Writes the completions, if any, and the report, in process 0; `state` as html takes it."""
    if not processes.is_main():
      return
    if samples is not None:
      writers.write_atomically(self._directory / "samples.json", json.dumps(samples))
    html.write_report(self._directory, *state)


@contextlib.contextmanager
def _warned_only(end: BaseException | None = None):
  """A report that fails is no reason to end a run, or to hide why it ended.

  Args:
    end: what ends the run. A report that fails for the same reason says nothing more.
  """
  try:
    yield
  except Exception as error:  # whatever the plots, the templates or the disk raise
    if str(error) == str(end):
      return
    logger.warning("the report was not written (%s: %s); the run is not affected",
                   type(error).__name__, str(error).split("\n")[0][:200])
