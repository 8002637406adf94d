"""The loop over iterations: train, evaluate, write, checkpoint."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
from tqdm import tqdm

from jaxrl_llm.build import evaluation_sets, inputs, setup
from jaxrl_llm.build.evaluation_sets import EvaluationSet
from jaxrl_llm.build.learner import Learner, Start
from jaxrl_llm.build.samplers import Sampler
from jaxrl_llm.build.warm_start import progress, warm_start
from jaxrl_llm.config import Config, to_dict
from jaxrl_llm.models import CheckpointError
from jaxrl_llm.parallel import processes
from jaxrl_llm.reporting import metric_writers, reader, writers
from jaxrl_llm.reporting.metric_writers import Copies
from jaxrl_llm.rollouts.server import ServerError
from jaxrl_llm.runs import evaluate
from jaxrl_llm.runs.best import Best
from jaxrl_llm.runs.dynamic_sampling import DriedUpError
from jaxrl_llm.runs.evaluate import Evaluation
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.outputs import Line, Outputs, write_line
from jaxrl_llm.runs.overlap import Ahead
from jaxrl_llm.runs.phases import Clock, Phases, profiled
from jaxrl_llm.runs.progress import Progress
from jaxrl_llm.runs.run_state import RunState, abstract_saved, first_state, restored_state
from jaxrl_llm.store import disk, lock, signals, workdir
from jaxrl_llm.store.checkpoints import Checkpoints, TornCheckpointsError
from jaxrl_llm.store.signals import Signals, Terminated
from jaxrl_llm.training.columns import REFERENCE
from jaxrl_llm.training.train_step import NonFiniteError
from jaxrl_llm.types import Params, Task

# What the run came to: the same command would end there again.
EARLY_ENDS = (NonFiniteError, DriedUpError)
# What ends a run with a message instead of a traceback.
RUN_ERRORS = (*EARLY_ENDS, TornCheckpointsError, CheckpointError, reader.RunError, disk.DiskError,
              ServerError)
# What sampling raises, before anything of the state is updated.
SAMPLING_ERRORS = (DriedUpError, ServerError)
logger = logging.getLogger(__name__)


class Evaluated(NamedTuple):
  """An evaluation on all sets, and the parameters it was made with (as the model reads them).

  Attributes:
    greedy: on the first set, the task's own problems unless it has none.
    metrics: of all sets, also those of the sampled completions.
    accuracy: the share of correct greedy completions of the first set.
  """

  params: Params
  greedy: Evaluation
  metrics: dict[str, float]
  accuracy: float


def run(cfg: Config, directory: str | Path) -> dict[str, float]:
  """Trains as `cfg` says, in `directory`; started again there, goes on after the last checkpoint.

  Returns:
    The last greedy evaluation's metrics: of the task's own problems, or of the first set; empty if
    nothing is evaluated.

  Raises:
    ConfigError: before anything compiles; also if another process trains in `directory`.
    CheckpointError: the weights of `pretrained` cannot be read.
    TornCheckpointsError: something that the run saved cannot be read.
    DiskError: there is no room to write.
    NonFiniteError: naming iteration and optimizer step.
    ServerError: the rollout server cannot be used, or was away for too long.
    Terminated: on SIGTERM, after the iteration was saved and the report written.
  """
  clock = Clock()
  resolved = setup.resolve(cfg)
  setup.warn_of_off_policy_data(resolved)
  metric_writers.require(resolved.writer)
  workdir.check(directory, resolved)
  processes.from_main("inputs", lambda: inputs.check(directory, resolved))
  cfg, task, learner, sampler = setup.build(resolved)
  setup.log_sampling(cfg.pretrained,
                     {"temperature": cfg.rollout.temperature, **cfg.vocabulary.rules})
  with contextlib.closing(sampler):
    sets = evaluation_sets.make_sets(cfg, task, needed=False)
    with disk.named(directory), _held(directory), signals.handled() as told:
      folder = Path(processes.from_main("workdir", lambda: _claimed(directory, resolved)))
      return _run(cfg, task, learner, sampler, sets, folder, clock, told)


def _claimed(directory: str | Path, cfg: Config) -> Path:
  """The run's folder, in which its config and the digests of its inputs are noted."""
  folder = workdir.claim(directory, cfg)
  inputs.record(folder, cfg)
  return folder


def _held(directory: str | Path):
  """The lock on a run's folder, which process 0 holds for all."""
  return lock.held(directory) if processes.is_main() else contextlib.nullcontext()


@dataclasses.dataclass(frozen=True)
class _StartParams:
  """Makes the parameters of the start, as the model reads them.

  A copy of all parameters is held only where the training needs one.

  Attributes:
    learner: of the run.
    reference: the KL reference, which they are; None without one.
    start: held where it shares its frozen leaves with the run's state; None elsewhere.
    read: reads the start from the run's folder, or `pretrained`.
  """

  learner: Learner
  reference: Params | None
  start: Start | None
  read: Callable[[], Start]

  def __call__(self) -> Params:
    if self.reference is not None:
      return self.reference
    return self.learner.merged(self.start or self.read())


def _run(cfg: Config, task: Task, learner: Learner, sampler: Sampler, sets: list[EvaluationSet],
         directory: Path, clock: Clock, told: Signals) -> dict[str, float]:
  """Warm start, all iterations and the report, in a folder that is the run's."""
  if processes.is_main():
    workdir.write_environment(directory)
    task.tokenizer.save_pretrained(directory / "tokenizer")
  start = warm_start(cfg, learner, task.tokenizer, directory)
  reference = learner.merged(start) if learner.scoring.reads(REFERENCE) else None
  read = functools.partial(warm_start, cfg, learner, task.tokenizer, directory)
  before = _StartParams(learner, reference, None if start.frozen is None else start, read)
  shown = Progress(cfg, sets[0] if sets else None, learner, sampler, before, directory)
  with contextlib.closing(_metrics_writer(cfg, directory)) as writer:
    with contextlib.closing(Checkpoints(directory, cfg.checkpoint)) as checkpoints:
      outputs = Outputs(directory, checkpoints, writer, Best(cfg, directory), shown, clock, sets,
                        told, set())
      with shown.until_interrupted():
        state, done = _restore_or_start(cfg, task, learner, sampler, start, outputs)
        del start  # its trained leaves were copied
        if not outputs.best.stop:
          state, done = _train(cfg, task, learner, sampler, state, reference, done, outputs)
  return shown.finish(done, learner.merged(state.state))


def _metrics_writer(cfg: Config, directory: Path) -> writers.MetricsWriter | writers.NoWriter:
  """The writer of metrics; in other processes than 0 one that does nothing."""
  if not processes.is_main():
    return writers.NoWriter()
  return writers.MetricsWriter(directory, Copies(cfg.writer, directory, to_dict(cfg)))


def _train(cfg: Config, task: Task, learner: Learner, sampler: Sampler, run: RunState,
           reference: Params | None, done: int, outputs: Outputs) -> tuple[RunState, int]:
  """Runs the iterations after `done`; returns the final state and the last iteration.

  Raises:
    Terminated: SIGTERM came, in any process; the iteration was saved.
  """
  bar = progress(range(done + 1, cfg.iterations + 1), cfg.estimator.name, initial=done,
                 total=cfg.iterations)
  pending, accuracy, phases, iteration = None, "-", Phases(), done
  outputs.signals.patient = True
  with Ahead(cfg, task, sampler) if cfg.updates.overlap else contextlib.nullcontext() as ahead:
    for iteration in bar:
      if ahead is None and not cfg.mesh.rollout:  # else the next rows are sampled meanwhile
        phases.wait(run.state.step)
      with profiled(outputs.directory, cfg.profile, iteration) as traced:
        try:
          run, metrics, values, rows = iterate(cfg, task, learner, sampler, run, reference,
                                               iteration, ahead)
        except SAMPLING_ERRORS:
          _keep_finished(outputs, run, pending, iteration - 1)
          raise
        if traced:
          jax.block_until_ready(run.state.step)
      phases.iterated(values)
      # The devices are busy with this iteration's updates while the host writes the one before.
      if pending is not None:
        write_line(outputs, pending)
      writers.write_rollouts(outputs.directory, iteration, rows,
                             (processes.index(), processes.count()))
      phases.lap("other")
      last, found = iteration == cfg.iterations, None
      if outputs.sets and (last or iteration % cfg.evaluation.every == 0):
        phases.wait(run.state.step)
        found = _evaluated(cfg, outputs.sets, sampler, learner.merged(run.state), iteration)
        values |= found.metrics
        accuracy = f"{found.accuracy:.3f}"
        phases.lap("evaluation")
      sampled = values.get("dynamic_sampling/tokens", values["rollout/tokens"])
      values |= phases.take(sampled) | outputs.clock.metrics()
      pending = Line(iteration, metrics, values)
      bar.set_postfix_str(_postfix(values, accuracy), refresh=False)
      outputs.signals.check()
      terminated = any(processes.exchange("terminated", outputs.signals.terminated))
      due = last or terminated or iteration % cfg.checkpoint.every == 0
      if due or found is not None:
        write_line(outputs, pending)  # first, because it refuses what is not finite
        pending = None
      if found is not None:
        _note(outputs, run, iteration, found, phases)
        last = last or outputs.best.stop
        del found  # its merged parameters, which would lie beside the next iteration's
      if due or last:
        outputs.save(iteration, run.saved(), wait=last or terminated)
        phases.lap("checkpoint")
      if terminated:
        raise Terminated(agreed=True)
      if last:
        break
  return run, iteration


def _keep_finished(outputs: Outputs, run: RunState, pending: Line | None, done: int) -> None:
  """Writes and saves what was finished before an iteration that cannot be sampled.

  Several processes keep what was saved before: the others may not know of the error, and all must
  save together.

  Args:
    run: the state after iteration `done`.
    pending: the line of that iteration, unless it was written.

  Raises:
    NonFiniteError: the updates of iteration `done` are not finite, which explains the rest.
  """
  if processes.count() > 1:
    return
  if pending is not None:
    write_line(outputs, pending)
  if outputs.checkpoints.latest() != done:
    outputs.save(done, run.saved(), wait=True)


def _restore_or_start(cfg: Config, task: Task, learner: Learner, sampler: Sampler, start: Start,
                      outputs: Outputs) -> tuple[RunState, int]:
  """(run, finished iterations) of the newest readable checkpoint; without one, of the warm start,
  which is evaluated and saved as iteration 0.
  """
  lines = processes.from_main(
      "lines", lambda: reader.read_metrics(str(outputs.directory / "metrics.jsonl")))
  recorded = lines[-1]["iteration"] if lines else -1
  found = outputs.checkpoints.restore(abstract_saved(cfg, learner), recorded)
  if found is not None:
    iteration, tree = found
    outputs.clock.resume(lines)  # lines that are cut back have taken time
    outputs.writer.cut_back(iteration)
    outputs.best.resume([line for line in lines if line["iteration"] <= iteration], iteration)
    logger.info("resumed after iteration %d", iteration)
    return restored_state(tree, start), iteration
  if recorded > 0:
    raise TornCheckpointsError(
        f"{outputs.directory}: metrics.jsonl reaches iteration {recorded}, but there is no "
        "checkpoint to go on from. Nothing was cut. Fix: put a copy of one back, start in a "
        "new --workdir, or remove metrics.jsonl to begin again.")
  outputs.writer.cut_back(-1)
  outputs.best.resume([], -1)
  run = first_state(cfg, learner, start)
  if outputs.sets:
    first = _evaluated(cfg, outputs.sets, sampler, learner.merged(run.state), 0)
    outputs.writer.write(0, first.metrics | outputs.clock.metrics())
    tqdm.write(f"after the warm start: held-out accuracy {first.accuracy:.3f}")
    _note(outputs, run, 0, first, Phases())
  else:
    outputs.writer.write(0, outputs.clock.metrics())
  outputs.save(0, run.saved())
  return run, 0


def _evaluated(cfg: Config, sets: list[EvaluationSet], sampler: Sampler, params: Params,
               iteration: int) -> Evaluated:
  """The greedy evaluation and the sampled one of each set."""
  greedy = [evaluate.evaluate(cfg, asked, sampler, params) for asked in sets]
  metrics: dict[str, float] = {}
  for asked, found in zip(sets, greedy, strict=True):
    metrics |= found.metrics
    metrics |= evaluate.sampled_metrics(cfg, asked, sampler, params, iteration)
  accuracy = metrics[evaluation_sets.named(sets[0].name, "eval/accuracy")]
  return Evaluated(params, greedy[0], metrics, accuracy)


def _note(outputs: Outputs, run: RunState, iteration: int, found: Evaluated,
          phases: Phases) -> None:
  """Keeps the parameters if they are the best, and shows the evaluation in the report."""
  outputs.best.update(iteration, found.metrics, run.state.params)
  phases.lap("checkpoint")
  outputs.progress.evaluated(iteration, found.params, found.greedy)
  phases.lap("other")


def _postfix(values: dict[str, float], accuracy: str) -> str:
  """What stands beside the bar."""
  return (f"reward {values['reward/mean']:.3f}, accuracy {accuracy}, "
          f"{values['time/tokens_per_second']:.0f} tokens/s, {values['time/peak_memory']:.1f} GiB")
