"""The loop over iterations: train, evaluate, write, checkpoint."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from jaxrl_llm.config import CheckpointConfig, Config, WriterConfig, to_dict
from jaxrl_llm.models import CheckpointError
from jaxrl_llm.parallel import processes
from jaxrl_llm.reporting import metric_writers, reader, writers
from jaxrl_llm.reporting.metric_writers import Copies
from jaxrl_llm.rollouts.server import ServerError
from jaxrl_llm.runs import evaluate
from jaxrl_llm.runs.best import Best
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.observers import Observed, Observer, Observers
from jaxrl_llm.runs.outputs import Outputs, RunRecords
from jaxrl_llm.runs.phases import Clock
from jaxrl_llm.runs.rollout_batch import DriedUpError
from jaxrl_llm.runs.run_state import RunState, abstract_saved, first_state, restored_state
from jaxrl_llm.store import folders, lock, signals, workdir
from jaxrl_llm.store.checkpoints import Checkpoints, TornCheckpointsError
from jaxrl_llm.store.signals import Signals
from jaxrl_llm.training.columns import REFERENCE
from jaxrl_llm.training.train_step import NonFiniteError
from jaxrl_llm.types import Params
from jaxrl_llm.wiring import automatic, evaluation_sets, inputs, setup
from jaxrl_llm.wiring.evaluation_sets import EvaluationSet
from jaxrl_llm.wiring.learner import Learner, Start
from jaxrl_llm.wiring.loop import Loop, make_loop
from jaxrl_llm.wiring.warm_start import warm_start

# Final outcomes of a run: the same command would end there again.
EARLY_ENDS = (NonFiniteError, DriedUpError)
# Errors that end a run with a message instead of a traceback.
RUN_ERRORS = (*EARLY_ENDS, TornCheckpointsError, CheckpointError, reader.RunError, ServerError,
              lock.MovedError)


class OutputSettings(NamedTuple):
  """Settings of a run's outputs.

  Attributes:
    directory: directory of the run.
    sets: what is evaluated.
    writer, checkpoint: sections of the config.
    patience: evaluations without a better one after which the run ends; 0: it never ends early.
    values: the full config, as metric writers record it.
    observers: what makes each observer of the run.
  """

  directory: Path
  sets: list[EvaluationSet]
  writer: WriterConfig
  checkpoint: CheckpointConfig
  patience: int
  values: dict[str, Any]
  observers: Sequence[Callable[[Observed], Observer]]


def run(cfg: Config, directory: str | Path,
        observers: Sequence[Callable[[Observed], Observer]] = ()) -> dict[str, float]:
  """Trains as `cfg` says, in `directory`; started again there, resumes from the last checkpoint.

  Args:
    observers: what looks at the run; `experiments.report.OBSERVERS` writes report.html and warns of
      a run that cannot learn.

  Returns:
    The last greedy evaluation's metrics: of the task's own problems, or of the first set; empty if
    nothing is evaluated.

  Raises:
    ConfigError: before anything compiles; also if another process trains in `directory`.
    CheckpointError: the weights of `pretrained` cannot be read.
    TornCheckpointsError: something that the run saved cannot be read.
    MovedError: the folder was moved away meanwhile.
    NonFiniteError: naming iteration and optimizer step.
    ServerError: the rollout server cannot be used, or was away for too long.
    Terminated: on SIGTERM, after the iteration was saved and the report written.
  """
  clock = Clock()
  resolved = setup.resolve(cfg)
  if (choices := automatic.line(cfg, resolved)) and processes.is_main():
    tqdm.write(choices)
  setup.warn_of_fast_rate(resolved)
  setup.warn_of_off_policy_data(resolved)
  metric_writers.require(resolved.writer)
  workdir.check(directory, to_dict(resolved))
  processes.from_main("inputs", lambda: inputs.check(directory, resolved))
  cfg, task, learner, sampler = setup.build(resolved)
  if cfg.pretrained:
    setup.log_sampling(cfg.pretrained,
                       {"temperature": cfg.rollout.temperature, **cfg.vocabulary.rules})
  loop = make_loop(cfg, task, learner, sampler)

  def claimed() -> Path:
    """Makes and returns the run's folder, with its config and notes of its inputs."""
    folder = workdir.claim(directory, to_dict(resolved))
    inputs.record(folder, inputs.notes(resolved))
    return folder

  with contextlib.closing(sampler):
    sets = evaluation_sets.make_sets(cfg, task, needed=False)
    evaluation_sets.leave_out(task, sets)
    with _lock(directory), signals.handled() as received:
      folder = folders.path_of(processes.from_main("workdir", claimed))
      settings = OutputSettings(folder, sets, cfg.writer, cfg.checkpoint, cfg.evaluation.patience,
                                to_dict(cfg), observers)
      make_start = functools.partial(warm_start, cfg, learner, task.tokenizer, folder, sets)
      return _run(loop, make_start, settings, clock, received)


def check(cfg) -> None:
  """Raises ConfigError for a Config that cannot be trained; nothing is written or compiled."""
  setup.build_learner(setup.resolve(cfg))


def _lock(directory: str | Path):
  """Returns the lock on a run's folder, which process 0 holds for all."""
  return lock.held(directory) if processes.is_main() else contextlib.nullcontext()


@dataclasses.dataclass(frozen=True)
class _StartParams:
  """Makes the parameters of the start, as the model reads them.

  A copy of all parameters is held only where the training needs one.

  Attributes:
    learner: learner of the run.
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


def _run(loop: Loop, make_start: Callable[[], Start], settings: OutputSettings, clock: Clock,
         received: Signals) -> dict[str, float]:
  """Runs warm start and all iterations, in the run's folder.

  Args:
    make_start: makes the warm start, or reads it from the folder.
    received: the signals that may end the run.
  """
  learner, folder, tokenizer = loop.learner, settings.directory, loop.source.task.tokenizer
  if processes.is_main():
    workdir.write_environment(folder)
    with folders.local(folder / "tokenizer") as local:
      local.mkdir(parents=True, exist_ok=True)  # else transformers logs, and writes nothing
      tokenizer.save_pretrained(local)
  start = make_start()
  reference = learner.merged(start) if learner.scoring.reads(REFERENCE) else None
  before = _StartParams(learner, reference, None if start.frozen is None else start, make_start)
  observers = Observers(Observed(loop, settings.sets[0] if settings.sets else None, before, folder),
                        settings.observers)
  best = Best(settings.checkpoint, settings.patience, folder)
  with contextlib.closing(_metrics_writer(settings)) as writer:
    with contextlib.closing(Checkpoints(folder, settings.checkpoint)) as checkpoints:
      outputs = Outputs(directory=folder, checkpoints=checkpoints, writer=writer, best=best,
                        clock=clock, sets=settings.sets, signals=received, observers=observers)
      with observers.until_interrupted():
        origin = [_restore_or_start(loop, start, outputs)]
        del start  # its trained leaves were copied
        state, iteration = origin.pop() if best.stop else _train(loop, origin, reference, outputs)
  return _finish(observers, iteration, learner.merged(state.state))


def _finish(observers: Observers, iteration: int, params: Params) -> dict[str, float]:
  """Shows the end to who observes; returns the metrics of the greedy evaluation of the last
  parameters, which is made where the run has made none; empty if nothing is evaluated.
  """
  heldout, sampler, evaluation = observers.run.heldout, observers.run.loop.source.sampler, None
  if heldout is not None:
    last, evaluation = observers.last or (None, None)
    if last != iteration:
      evaluation = evaluate.evaluate(heldout, sampler, params)
  observers.finished(iteration, params, evaluation)
  return {} if evaluation is None else evaluation.metrics


def _metrics_writer(settings: OutputSettings) -> writers.MetricsWriter | writers.NoWriter:
  """Returns the writer of metrics; in other processes than 0 one that does nothing."""
  if not processes.is_main():
    return writers.NoWriter()
  directory = settings.directory
  return writers.MetricsWriter(directory, Copies(settings.writer, directory, settings.values))


def _train(loop: Loop, origin: list[tuple[RunState, int]], reference: Params | None,
           outputs: Outputs) -> tuple[RunState, int]:
  """Runs the iterations that are left; returns the final state and the last iteration.

  Args:
    origin: state and number of finished iterations, taken out: a caller would keep old policies.

  Raises:
    Terminated: SIGTERM came, in any process; the iteration was saved.
  """
  records = RunRecords(loop, outputs)
  run, finished = origin.pop()
  iteration = finished
  sampler: contextlib.AbstractContextManager = contextlib.nullcontext()
  if loop.schedule.overlap:
    from jaxrl_llm.runs.overlap import Ahead
    sampler = Ahead(loop.source)
  with sampler as ahead:
    for iteration in records.iterations(finished):
      run = iterate(loop, run, reference, iteration, ahead, records).run
      if records.ended:
        break
  return run, iteration


def _restore_or_start(loop: Loop, start: Start, outputs: Outputs) -> tuple[RunState, int]:
  """Returns (run, finished iterations) of the newest readable checkpoint; without one, of the warm
  start, which is evaluated and saved as iteration 0.
  """
  learner = loop.learner
  lines = processes.from_main(
      "lines", lambda: reader.read_metrics(str(outputs.directory / "metrics.jsonl")))
  last_iteration = lines[-1]["iteration"] if lines else -1
  saved_tree = outputs.checkpoints.restore(abstract_saved(learner), last_iteration)
  if saved_tree is not None:
    iteration, tree = saved_tree
    outputs.clock.resume(lines)  # lines that are cut back have taken time
    outputs.writer.cut_back(iteration)
    outputs.best.resume([line for line in lines if line["iteration"] <= iteration], iteration)
    return restored_state(tree, start), iteration
  if last_iteration > 0:
    raise TornCheckpointsError(
        f"{outputs.directory}: metrics.jsonl reaches iteration {last_iteration}, but there is no "
        "checkpoint to resume from. Nothing was cut. Fix: put a copy of one back, start in a "
        "new --workdir, or remove metrics.jsonl to begin again.")
  outputs.writer.cut_back(-1)
  outputs.best.resume([], -1)
  run = first_state(learner, start)
  RunRecords(loop, outputs).write_start(run)
  return run, 0
