"""Writes the report of a run while it trains, when it is interrupted, and at its end."""

import contextlib
import itertools
import json
import logging
import time

import jax
import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from experiments.report import html, strips, summaries
from experiments.report.run_folder import read_run
from jaxrl_llm import parallel
from jaxrl_llm.parallel import processes
from jaxrl_llm.reporting import writers
from jaxrl_llm.runs import evaluate
from jaxrl_llm.runs.evaluate import Evaluation
from jaxrl_llm.runs.observers import Observed, Observer
from jaxrl_llm.types import Params, Rollout, Sampling
from jaxrl_llm.wiring.learner import Learner

SAMPLES = 12  # held-out completions shown in the report
SPACING = 20  # durations of a refresh between two of them, so that they take 5 % of the time
logger = logging.getLogger(__name__)


class Report(Observer):
  """Writes heldout.jsonl, samples.json, curves.png and report.html.

  It evaluates nothing that the run evaluates anyway. A run resumed from a checkpoint lacks the
  completions from before its training and makes them once. After an interruption the completions
  are from the last refresh. Parameters are not held between two reports.
  """

  def __init__(self, run: Observed):
    super().__init__(run)
    self._before: Evaluation | None = None
    self._written: float | None = None  # when the report was last refreshed
    self._took = 0.0

  def evaluated(self, iteration: int, params: Params, evaluation: Evaluation) -> None:
    """Takes an evaluation, and refreshes the report if enough time has passed since the last time.

    The evaluation of iteration 0 is shown by `rested`, after the first iteration.
    """
    if iteration == 0:
      self._before = evaluation
    if processes.is_main():
      with _warned_only():
        rows = zip(evaluation.problems, evaluation.texts, evaluation.correct, strict=True)
        strips.add(self.run.directory, iteration,
                   [(problem.prompt, problem.answer, text, bool(correct))
                    for problem, text, correct in itertools.islice(rows, strips.PROBLEMS)])
    if iteration == 0:
      return
    now = time.perf_counter()
    last = iteration == self.run.loop.schedule.iterations
    due = self._written is None or now - self._written >= SPACING * self._took
    # After the last one comes `finished`. The clocks of several processes need not agree.
    if last or not processes.from_main("report due", lambda: due):
      return
    self._refresh(iteration, params, evaluation)

  def rested(self) -> None:
    """Shows the evaluation of iteration 0, once: after the first iteration, which would else wait
    for the plots to be imported.
    """
    if self._written is None and self._before is not None:
      self._refresh(0, None, self._before)

  def _refresh(self, iteration: int, params: Params | None, evaluation: Evaluation) -> None:
    now = time.perf_counter()
    with _warned_only():
      self._write(self._samples(iteration, params, evaluation))
    self._written = time.perf_counter()
    self._took = self._written - now

  def interrupted(self, error: BaseException) -> None:
    """Writes the report."""
    with _warned_only(error):
      if processes.is_main():
        html.write_report(self.run.directory, f"interrupted by {type(error).__name__}")

  def finished(self, iteration: int, params: Params, evaluation: Evaluation | None) -> None:
    """Writes the last report and prints the summary."""
    early = iteration < self.run.loop.schedule.iterations  # only evaluation.patience ends a run so
    samples = None if evaluation is None else self._samples(iteration, params, evaluation)
    self._write(samples, "ended early" if early else "finished")
    self._print()

  def _print(self) -> None:
    """Prints the summary, in process 0."""
    if processes.is_main():
      tqdm.write(summaries.summary_table(read_run(self.run.directory)))
      tqdm.write(f"plot: {self.run.directory / 'curves.png'}\n"
                 f"report: {self.run.directory / 'report.html'}")

  def _evaluate(self, params: Params) -> Evaluation:
    assert self.run.heldout is not None, "without problems, nothing asks for an evaluation"
    return evaluate.evaluate(self.run.heldout, self.run.loop.source.sampler, params)

  def _samples(self, iteration: int, params: Params | None, evaluation: Evaluation) -> dict:
    """Returns completions from before training and of `evaluation`; `params` None: the start's,
    which are not read, as nothing changed.
    """
    assert self.run.heldout is not None, "without problems, there are no completions"
    start = None if params is None else self.run.start_params()
    if self._before is None:
      self._before = self._evaluate(start)
    tokenizer: PreTrainedTokenizerBase = self.run.heldout.task.tokenizer
    count = min(SAMPLES, len(self.run.heldout.problems) // processes.count())
    return {
        name: samples_of(self.run.loop.learner, tokenizer, params, start, record, count)
        for name, record in (("before", self._before), ("after", evaluation))
    } | {"iteration": iteration}

  def _write(self, samples: dict | None, *state: str) -> None:
    """Writes the completions, if any, and the report, in process 0; `state` as html takes it."""
    if not processes.is_main():
      return
    if samples is not None:
      writers.write_atomically(self.run.directory / "samples.json", json.dumps(samples))
    html.write_report(self.run.directory, *state)


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


def samples_of(learner: Learner, tokenizer: PreTrainedTokenizerBase, params: Params | None,
               other_params: Params | None, evaluation: Evaluation, count: int) -> list[dict]:
  """Returns JSON-able records of the first `count` rows of an evaluation, of this process's.

  All processes call it with as many rows. Per completion token, `log_ratio` is its log-prob under
  `params` minus that under `other_params`, nats; None for tokens of a tool. Both None: they are the
  same, so that it is 0 and nothing is computed.
  """
  count = min(count, len(evaluation.problems))
  host = evaluation.rollout
  change = np.zeros(host.tokens[:count].shape)
  if params is not None:
    change = (_log_probs(learner, params, host, count)
              - _log_probs(learner, other_params, host, count))
  out = []
  for row in range(count):
    problem, span = evaluation.problems[row], slice(host.prompt_length[row], host.length[row])
    log_ratio, mask = change[row][span].tolist(), host.mask[row][span]
    out.append({
        "prompt": problem.prompt,
        "answer": problem.answer,
        "completion": evaluation.texts[row],
        "correct": bool(evaluation.correct[row]),
        "truncated": bool(host.truncated[row]),
        "pieces": [tokenizer.decode([token]) for token in host.tokens[row][span].tolist()],
        "log_ratio": [x if m else None for x, m in zip(log_ratio, mask, strict=True)],
    })
  return out


def _log_probs(learner: Learner, params: Params, rollout: Rollout, count: int) -> np.ndarray:
  """Returns [count, L] log-probs of the first rows at temperature 1."""
  size = parallel.padded(count, parallel.of_process(learner.mesh))
  index = np.minimum(np.arange(size), count - 1)
  rows = parallel.to_global(jax.tree.map(lambda x: x[index], rollout), learner.mesh)
  stats = learner.scoring.score_heldout(params, rows, Sampling.of(1.0))
  return parallel.local_rows(stats.log_probs)[:count]
