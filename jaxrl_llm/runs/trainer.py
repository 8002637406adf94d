"""The loop over iterations: train, evaluate, write, checkpoint; and the report at the end."""

import contextlib
import json
import logging
import math
import time
from pathlib import Path
from typing import NamedTuple

import jax
from tqdm import tqdm

from jaxrl_llm import parallel
from jaxrl_llm.config import Config
from jaxrl_llm.models import CheckpointError
from jaxrl_llm.reporting import html, plots, reader, summary, tables, writers
from jaxrl_llm.runs import evaluate, lock, setup, workdir
from jaxrl_llm.runs.checkpoints import Checkpoints, TornCheckpointsError
from jaxrl_llm.runs.dynamic_sampling import DriedUpError
from jaxrl_llm.runs.iteration import DeviceMetrics, iterate
from jaxrl_llm.runs.learner import Learner, Start
from jaxrl_llm.runs.overlap import Ahead
from jaxrl_llm.runs.run_state import RunState, abstract_saved, first_state, restored_state
from jaxrl_llm.runs.samplers import Sampler
from jaxrl_llm.runs.warm_start import progress, warm_start
from jaxrl_llm.training.train_step import NonFiniteError
from jaxrl_llm.types import Params, Task, TrainState, merge_metrics

# What ends a run with a message instead of a traceback.
RUN_ERRORS = (NonFiniteError, TornCheckpointsError, CheckpointError, DriedUpError, reader.RunError)
SAMPLES = 12  # held-out completions shown in the report
logger = logging.getLogger(__name__)
merged_metrics = jax.jit(merge_metrics)


class Outputs(NamedTuple):
  """Where a run writes: its folder, and what keeps files open in it."""

  directory: Path
  checkpoints: Checkpoints
  writer: writers.MetricsWriter


class Line(NamedTuple):
  """An iteration's metrics before they are written; see `Iteration`."""

  iteration: int
  metrics: DeviceMetrics
  values: dict[str, float]


def run(cfg: Config, directory: str | Path) -> dict[str, float]:
  """Trains as `cfg` says, in `directory`; started again there, goes on after the last checkpoint.

  Returns:
    The last evaluation's metrics.

  Raises:
    ConfigError: before anything compiles; also if another process trains in `directory`.
    CheckpointError: the weights of `pretrained` cannot be read.
    NonFiniteError: naming iteration and optimizer step.
  """
  resolved = setup.resolve(cfg)
  workdir.check(directory, resolved)
  cfg, task, learner, sampler = setup.build(resolved)
  with contextlib.closing(sampler), lock.held(directory):
    return _run(cfg, task, learner, sampler, workdir.claim(directory, resolved))


def _run(cfg: Config, task: Task, learner: Learner, sampler: Sampler,
         directory: Path) -> dict[str, float]:
  """Warm start, all iterations and the report, in a folder that is the run's."""
  workdir.write_environment(directory)
  task.tokenizer.save_pretrained(directory / "tokenizer")
  start = warm_start(cfg, learner, task.tokenizer, directory)
  start_params = learner.merged(start)
  with contextlib.closing(writers.MetricsWriter(directory)) as writer:
    with contextlib.closing(Checkpoints(directory, cfg.checkpoint)) as checkpoints:
      outputs = Outputs(directory, checkpoints, writer)
      state = _train(cfg, task, learner, sampler, start, start_params, outputs)
  return _report(cfg, task, learner, sampler, start_params, learner.merged(state), directory)


def _train(cfg: Config, task: Task, learner: Learner, sampler: Sampler, start: Start,
           start_params: Params, outputs: Outputs) -> TrainState:
  """Runs the iterations that are left; returns the final state."""
  run, done = _restore_or_start(cfg, task, learner, sampler, start, outputs)
  bar = progress(range(done + 1, cfg.iterations + 1), cfg.estimator.name, initial=done,
                 total=cfg.iterations)
  pending, accuracy, clock = None, "-", time.perf_counter()
  with Ahead(cfg, task, sampler) if cfg.updates.overlap else contextlib.nullcontext() as ahead:
    for iteration in bar:
      run, metrics, values, rows = iterate(cfg, task, learner, sampler, run, start_params,
                                           iteration, ahead)
      # The devices are busy with this iteration's updates while the host writes the one before.
      if pending is not None:
        _write(outputs, pending)
      writers.write_rollouts(outputs.directory, iteration, rows)
      last = iteration == cfg.iterations
      if last or iteration % cfg.evaluation.every == 0:
        values |= _evaluated(cfg, task, sampler, learner.merged(run.state), iteration)
        accuracy = f"{values['eval/accuracy']:.3f}"
      values["time/iteration"], clock = time.perf_counter() - clock, time.perf_counter()
      pending = Line(iteration, metrics, values)
      bar.set_postfix_str(f"reward {values['reward/mean']:.3f}, accuracy {accuracy}", refresh=False)
      if last or iteration % cfg.checkpoint.every == 0:
        _write(outputs, pending)
        pending = None
        outputs.checkpoints.save(iteration, run.saved())
  return run.state


def _restore_or_start(cfg: Config, task: Task, learner: Learner, sampler: Sampler, start: Start,
                      outputs: Outputs) -> tuple[RunState, int]:
  """(run, finished iterations) of the newest readable checkpoint; without one, of the warm start,
  which is evaluated and saved as iteration 0.
  """
  found = outputs.checkpoints.restore(abstract_saved(cfg, learner))
  if found is not None:
    iteration, tree = found
    outputs.writer.cut_back(iteration)
    logger.info("resumed after iteration %d", iteration)
    return restored_state(tree, start), iteration
  outputs.writer.cut_back(-1)
  run = first_state(cfg, learner, start)
  metrics = _evaluated(cfg, task, sampler, learner.merged(run.state), 0)
  outputs.writer.write(0, metrics)
  tqdm.write(f"after the warm start: held-out accuracy {metrics['eval/accuracy']:.3f}")
  outputs.checkpoints.save(0, run.saved())
  return run, 0


def _evaluated(cfg: Config, task: Task, sampler: Sampler, params: Params,
               iteration: int) -> dict[str, float]:
  """Metrics of the greedy evaluation and of the sampled one."""
  greedy = evaluate.evaluate(cfg, task, sampler, params).metrics
  return greedy | evaluate.sampled_metrics(cfg, task, sampler, params, iteration)


def _write(outputs: Outputs, line: Line) -> None:
  """Fetches an iteration's metrics and writes its line.

  Raises:
    NonFiniteError: a loss or gradient is not finite. The line is written first.
  """
  steps, batch, replay = line.metrics
  values = dict(line.values)
  if replay is not None:
    values["pipo/loss"] = float(replay["loss/total"].total)
  each = parallel.gather_host([(step["loss/total"].total, step["optimizer/grad_norm"].total)
                               for step in steps])
  merged = summary.summarize(parallel.gather_host({**merged_metrics(steps), **batch}))
  outputs.writer.write(line.iteration, values | merged)
  for step, (loss, norm) in enumerate(each, start=int(values["step"]) - len(steps) + 1):
    if not (math.isfinite(loss) and math.isfinite(norm)):
      raise NonFiniteError(
          f"iteration {line.iteration}, optimizer step {step}: loss = {float(loss)}, gradient norm "
          f"= {float(norm)}. The last good checkpoint is that of iteration "
          f"{outputs.checkpoints.latest()}. Fix: a smaller optimizer.learning_rate, or a bounded "
          "ratio; a new --workdir.")


def _report(cfg: Config, task: Task, learner: Learner, sampler: Sampler, start_params: Params,
            params: Params, directory: Path) -> dict[str, float]:
  """Writes samples before and after, plot and report.html, and prints the summary; returns the
  metrics of the last evaluation.
  """
  before = evaluate.evaluate(cfg, task, sampler, start_params)
  after = evaluate.evaluate(cfg, task, sampler, params)
  shown = {
      name: evaluate.samples(learner, task.tokenizer, params, start_params, evaluation, SAMPLES)
      for name, evaluation in (("before", before), ("after", after))
  }
  writers.write_atomically(directory / "samples.json", json.dumps(shown))
  finished = reader.read_run(directory)
  plots.plot_run(finished, directory / "curves.png")
  report = html.write_report(directory)
  tqdm.write(tables.summary_table(finished))
  tqdm.write(f"plot: {directory / 'curves.png'}\nreport: {report}")
  return after.metrics
