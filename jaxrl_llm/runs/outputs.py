"""The outputs of a run, and the records that an iteration leaves there."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
from tqdm import tqdm

from jaxrl_llm import parallel
from jaxrl_llm.config import RolloutFilesConfig
from jaxrl_llm.config.evaluation import measure, set_metric
from jaxrl_llm.fields import PluginError
from jaxrl_llm.parallel import processes
from jaxrl_llm.reporting import summary, writers
from jaxrl_llm.reporting.writers import MetricsWriter, NoWriter
from jaxrl_llm.rollouts.server import ServerError
from jaxrl_llm.runs import evaluate
from jaxrl_llm.runs.best import Best
from jaxrl_llm.runs.evaluate import Evaluation
from jaxrl_llm.runs.observers import Observers
from jaxrl_llm.runs.phases import Clock, Phases, profiled
from jaxrl_llm.runs.records import DeviceMetrics, Records
from jaxrl_llm.runs.rollout_batch import DriedUpError, ScoredBatch
from jaxrl_llm.runs.run_state import RunState
from jaxrl_llm.store import lock
from jaxrl_llm.store.checkpoints import Checkpoints
from jaxrl_llm.store.signals import Signals, Terminated
from jaxrl_llm.training.train_step import NonFiniteError
from jaxrl_llm.types import Params, merge_metrics
from jaxrl_llm.wiring.evaluation_sets import EvaluationSet
from jaxrl_llm.wiring.loop import Loop, RolloutSource
from jaxrl_llm.wiring.warm_start import progress

merged_metrics = jax.jit(merge_metrics)
# Errors of sampling, raised before any state is updated.
SAMPLING_ERRORS = (DriedUpError, PluginError, ServerError)


class Outputs(NamedTuple):
  """The outputs of a run: its folder, its writers, its clock, the problems it evaluates, the
  signals that may end it, and what looks at it.
  """

  directory: Path
  checkpoints: Checkpoints
  writer: MetricsWriter | NoWriter
  best: Best
  clock: Clock
  sets: list[EvaluationSet]
  signals: Signals
  observers: Observers

  def save(self, iteration: int, tree, wait: bool = False) -> None:
    """Begins a checkpoint, and removes best parameters that no complete checkpoint needs.

    Args:
      wait: until it is complete.
    """
    lock.check(self.directory)
    self.checkpoints.finish()
    self.best.prune()
    self.checkpoints.save(iteration, tree)
    if wait:
      self.checkpoints.finish()
      self.best.prune()


class Line(NamedTuple):
  """An iteration's metrics before they are written; see `Iteration`.

  Attributes:
    merged: of all steps and of the batch. The program that merges them was dispatched right behind
      the iteration's updates, so that reading the line waits for no later ones.
  """

  iteration: int
  metrics: DeviceMetrics
  merged: dict
  values: dict[str, float]


class Evaluated(NamedTuple):
  """An evaluation on all sets, and the parameters it was made with (as the model reads them).

  Attributes:
    greedy: on the first set, the task's own problems unless it has none.
    metrics: of all sets, including sampled completions.
    score: the share of correct greedy completions of the first set, in words, or their reward.
  """

  params: Params
  greedy: Evaluation
  metrics: dict[str, float]
  score: str


class RunRecords(Records):
  """Writes, evaluates and saves the iterations of a run.

  Attributes:
    ended: whether the last iteration is over, or `evaluation.patience` ended the run.
  """

  def __init__(self, loop: Loop, outputs: Outputs):
    self._loop, self._schedule, self._outputs = loop, loop.schedule, outputs
    self._phases, self._score = Phases(), "accuracy -"
    self._pending: Line | None = None  # the devices may still compute its metrics
    self._bar: tqdm | None = None
    self.ended = False

  def iterations(self, done: int) -> tqdm:
    """Yields the iterations after `done`, with a progress bar."""
    schedule = self._schedule
    self._phases, self._outputs.signals.patient = Phases(), True
    self._bar = progress(range(done + 1, schedule.iterations + 1), schedule.title, initial=done,
                         total=schedule.iterations)
    return self._bar

  @contextlib.contextmanager
  def updating(self, run: RunState, iteration: int) -> Iterator:
    """As in `Records`; waits for the updates before, writes their metrics, traces, and keeps what
    was finished if rows cannot be sampled.
    """
    arrays: list[jax.Array] = []
    if self._schedule.wait_for_updates:
      self._phases.wait(run.state.step)
      self._write_pending()
    with profiled(self._outputs.directory, self._schedule.profile, iteration) as profile_path:
      try:
        yield arrays.append
      except SAMPLING_ERRORS:
        self._keep_finished(run, iteration - 1)
        raise
      if profile_path:
        jax.block_until_ready(arrays)

  def write(self, iteration: int, scored: ScoredBatch, metrics: DeviceMetrics,
            values: dict[str, float]) -> list[dict]:
    """Writes the rows, which it returns, while the devices are busy with the updates, and the
    metrics of the iteration before if they are not yet written.
    """
    phases = self._phases
    rows = super().write(iteration, scored, metrics, values)
    merged = {**merged_metrics(metrics.steps), **metrics.batch}
    phases.iterated(values)
    self._write_pending()
    if iteration > 1:
      self._outputs.observers.rested()
      phases.lap("report")
    lock.check(self._outputs.directory)
    write_rollouts(self._outputs.directory, iteration, rows, self._schedule.rollouts,
                   self._loop.source)
    phases.lap("other")
    self._pending = Line(iteration, metrics, merged, dict(values))
    self._outputs.observers.sampled(iteration, scored.batch)
    return rows

  def evaluate_and_save(self, iteration: int, run: RunState) -> None:
    """As in `Records`; writes first, because that refuses what is not finite.

    Raises:
      NonFiniteError: see `write_line`.
      Terminated: SIGTERM came, in any process; the iteration was saved.
    """
    outputs, schedule, phases = self._outputs, self._schedule, self._phases
    last, evaluated, values = iteration == schedule.iterations, None, self._pending.values
    if outputs.sets and (last or iteration % schedule.evaluation.every == 0):
      phases.wait(run.state.step)
      evaluated = self._evaluated(run, iteration)
      values |= evaluated.metrics
      self._score = evaluated.score
      phases.lap("evaluation")
    sampled = values.get("dynamic_sampling/tokens", values["rollout/tokens"])
    values |= phases.take(sampled) | outputs.clock.metrics()
    self._bar.set_postfix_str(_postfix(values, self._score), refresh=False)
    terminated = self._terminated()
    due = last or terminated or iteration % schedule.checkpoint_every == 0
    if due or evaluated is not None:
      self._write_pending()
    if evaluated is not None:
      self._note(run, iteration, evaluated)
      last = last or outputs.best.stop
    if due or last:
      outputs.save(iteration, run.saved(self._loop.learner.mesh), wait=last or terminated)
      phases.lap("checkpoint")
    if terminated:
      raise Terminated(agreed=True)
    self.ended = last

  def write_start(self, run: RunState) -> None:
    """Evaluates, writes and saves the state before the first iteration, as iteration 0."""
    outputs = self._outputs
    if outputs.sets:
      first = self._evaluated(run, 0)
      outputs.writer.write(0, first.metrics | outputs.clock.metrics())
      tqdm.write(f"before training, on the held-out problems: {first.score}")
      self._note(run, 0, first)
    else:
      outputs.writer.write(0, outputs.clock.metrics())
    outputs.save(0, run.saved(self._loop.learner.mesh))

  def _terminated(self) -> bool:
    """Returns whether a signal must end the run, in any process."""
    signals = self._outputs.signals
    signals.check()
    if not self._loop.source.multi_process:
      return signals.terminated
    return any(processes.exchange("terminated", signals.terminated))

  def _evaluated(self, run: RunState, iteration: int) -> Evaluated:
    """Returns the greedy evaluation and the sampled one of each set."""
    sets, sampler = self._outputs.sets, self._loop.source.sampler
    params = self._loop.learner.merged(run.state)
    greedy = [evaluate.evaluate(heldout, sampler, params) for heldout in sets]
    metrics: dict[str, float] = {}
    for heldout, evaluation in zip(sets, greedy, strict=True):
      metrics |= evaluation.metrics
      metrics |= evaluate.sampled_metrics(heldout, sampler, params, iteration,
                                          self._schedule.evaluation)
    name = measure(set_metric(sets[0].name, "eval/accuracy"), metrics)
    return Evaluated(params, greedy[0], metrics, f"{name.split('/')[-1]} {metrics[name]:.3f}")

  def _note(self, run: RunState, iteration: int, evaluated: Evaluated) -> None:
    """Keeps the parameters if they are the best, and shows the evaluation to who observes."""
    self._outputs.best.update(iteration, evaluated.metrics, run.state.params)
    self._phases.lap("checkpoint")
    self._outputs.observers.evaluated(iteration, evaluated.params, evaluated.greedy)
    self._phases.lap("report")

  def _write_pending(self) -> None:
    if self._pending is not None:
      write_line(self._outputs, self._pending)
      self._pending = None
      self._phases.lap("other")

  def _keep_finished(self, run: RunState, iteration: int) -> None:
    """Writes and saves what was finished before an iteration that cannot be sampled.

    Several processes keep what was saved before: the others may not know of the error, and all must
    save together.

    Args:
      run: the state after `iteration`.

    Raises:
      NonFiniteError: the updates of `iteration` are not finite, which explains the rest.
    """
    if self._loop.source.multi_process:
      return
    self._write_pending()
    if self._outputs.checkpoints.latest() != iteration:
      self._outputs.save(iteration, run.saved(self._loop.learner.mesh), wait=True)


def write_rollouts(directory: Path, iteration: int, rows: list[dict], files: RolloutFilesConfig,
                   source: RolloutSource) -> None:
  """Writes an iteration's rows as far as `files` says, and removes older iterations' rows."""
  if iteration % files.every:
    return
  group = source.rollout.group_size
  count = -(-files.rows // group) * group if files.rows else len(rows)
  part = (processes.index(), processes.count()) if source.multi_process else (0, 1)
  writers.write_rollouts(directory, iteration, rows[:count], part)
  if files.keep:
    writers.prune_rollouts(directory, files.keep, iteration)


def write_line(outputs: Outputs, line: Line) -> None:
  """Fetches an iteration's metrics and writes its line, once earlier checkpoints are complete.

  So metrics.jsonl never reaches past a checkpoint that a killed run would not find again. The
  write of a checkpoint has the time of the next iteration.

  Raises:
    MovedError: the folder is no longer there.
    NonFiniteError: a loss or gradient is not finite. The line is written first.
  """
  lock.check(outputs.directory)
  steps, _, phases = line.metrics
  values = dict(line.values)
  for name, phase_steps in phases.items():
    values |= {f"{name}/loss": float(metrics["loss/total"].total) for metrics in phase_steps}
  losses = parallel.gather_host([(step["loss/total"].total, step["optimizer/grad_norm"].total)
                                 for step in steps])
  merged = summary.summarize(parallel.gather_host(line.merged))
  outputs.checkpoints.finish()
  outputs.writer.write(line.iteration, values | merged)
  if processes.is_main():
    outputs.observers.written(line.iteration, values | merged)
  for step, (loss, norm) in enumerate(losses, start=int(values["step"]) - len(steps) + 1):
    if not (math.isfinite(loss) and math.isfinite(norm)):
      raise NonFiniteError(
          f"iteration {line.iteration}, optimizer step {step}: loss = {float(loss)}, gradient norm "
          f"= {float(norm)}. The last good checkpoint is that of iteration "
          f"{outputs.checkpoints.latest()}. Fix: a smaller optimizer.learning_rate, or a bounded "
          "ratio; a new --workdir.")


def _postfix(values: dict[str, float], score: str) -> str:
  """Returns the text next to the progress bar."""
  return (f"reward {values['reward/mean']:.3f}, held out: {score}, "
          f"{values['time/tokens_per_second']:.0f} tokens/s, {values['time/peak_memory']:.1f} GiB")
