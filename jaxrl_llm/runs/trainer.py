"""The loop: sample, verify, score, weigh, update; evaluate and checkpoint; report."""

import contextlib
import json
import logging
import math
import time
from pathlib import Path

from tqdm import tqdm

from jaxrl_llm import parallel
from jaxrl_llm.config import Config
from jaxrl_llm.models import CheckpointError
from jaxrl_llm.reporting import html, plots, reader, summary, tables, writers
from jaxrl_llm.runs import evaluate, setup, workdir
from jaxrl_llm.runs.checkpoints import Checkpoints, TornCheckpointsError
from jaxrl_llm.runs.draw import DriedUpError
from jaxrl_llm.runs.iteration import Run, abstract_saved, first_run, iterate, restored
from jaxrl_llm.runs.overlap import Ahead
from jaxrl_llm.runs.warm_start import Start, progress, warm_start
from jaxrl_llm.training.train_step import NonFiniteError
from jaxrl_llm.types import TrainState

# What ends a run with a message, not a traceback.
RUN_ERRORS = (NonFiniteError, TornCheckpointsError, CheckpointError, DriedUpError, reader.RunError)
SAMPLES = 12  # held-out completions shown in the report
logger = logging.getLogger(__name__)


def run(cfg: Config, directory: str | Path) -> dict[str, float]:
  """Train as `cfg` says, in `directory`; started again there, go on where the last checkpoint was.

  Returns:
    The last evaluation's metrics.

  Raises:
    ConfigError: before anything compiles.
    CheckpointError: the weights of `pretrained` cannot be read.
    NonFiniteError: naming iteration and optimizer step.
  """
  cfg = setup.resolve(cfg)
  workdir.check(directory, cfg)
  with contextlib.closing(setup.build(cfg)) as parts:
    return _run(parts, workdir.claim(directory, cfg))


def _run(parts: setup.Parts, directory: Path) -> dict[str, float]:
  cfg = parts.cfg
  workdir.write_environment(directory)
  parts.tokenizer.save_pretrained(directory / "tokenizer")
  start = warm_start(parts, directory)
  start_params = parts.merged(start)
  checkpoints = Checkpoints(directory, cfg.checkpoint)
  writer = writers.MetricsWriter(directory)
  try:
    with Ahead() if cfg.updates.overlap else contextlib.nullcontext() as ahead:
      state = _train(parts, start, start_params, checkpoints, writer, directory, ahead)
  finally:
    checkpoints.close()
    writer.close()
  return _report(parts, start_params, parts.merged(state), directory)


def _train(parts: setup.Parts, start: Start, start_params, checkpoints: Checkpoints, writer,
           directory: Path, ahead: Ahead | None):
  """All iterations that are left; returns the final state."""
  cfg = parts.cfg
  run, done = _restore_or_start(parts, start, checkpoints, writer)
  bar = progress(range(done + 1, cfg.iterations + 1), cfg.estimator.name, initial=done,
                 total=cfg.iterations)
  accuracy = "-"
  pending, clock = None, time.perf_counter()
  for iteration in bar:
    run, steps, values, rows = iterate(parts, run, start_params, iteration, ahead)
    # The devices are busy with this iteration's updates while the host writes the one before.
    if pending is not None:
      _write(parts, writer, checkpoints, *pending)
    writers.write_rollouts(directory, iteration, rows)
    if iteration % cfg.evaluation.every == 0 or iteration == cfg.iterations:
      values |= _evaluated(parts, run.state, iteration)
      accuracy = f"{values['eval/accuracy']:.3f}"
    values["time/iteration"], clock = time.perf_counter() - clock, time.perf_counter()
    pending = (iteration, steps, values)
    bar.set_postfix_str(f"reward {values['reward/mean']:.3f}, accuracy {accuracy}", refresh=False)
    if iteration % cfg.checkpoint.every == 0 or iteration == cfg.iterations:
      _write(parts, writer, checkpoints, *pending)
      pending = None
      checkpoints.save(iteration, run.saved())
  return run.state


def _restore_or_start(parts: setup.Parts, start: Start, checkpoints: Checkpoints,
                      writer) -> tuple[Run, int]:
  """(run, finished iterations): the newest readable checkpoint, or the warm start with its
  evaluation.
  """
  found = checkpoints.restore(abstract_saved(parts))
  if found is not None:
    iteration, tree = found
    writer.cut_back(iteration)
    logger.info("resumed after iteration %d", iteration)
    return restored(tree, start), iteration
  writer.cut_back(-1)
  run = first_run(parts, start)
  metrics = _evaluated(parts, run.state, 0)
  writer.write(0, metrics)
  tqdm.write(f"after the warm start: held-out accuracy {metrics['eval/accuracy']:.3f}")
  checkpoints.save(0, run.saved())
  return run, 0


def _evaluated(parts: setup.Parts, state: TrainState, iteration: int) -> dict[str, float]:
  params = parts.merged(state)
  return evaluate.evaluate(parts, params).metrics | evaluate.sampled_metrics(
      parts, params, iteration)


def _write(parts: setup.Parts, writer, checkpoints: Checkpoints, iteration: int, device,
           values: dict) -> None:
  """Fetch an iteration's metrics and write its line; stop the run where the loss or gradient is not
  finite.
  """
  steps, correction, replayed = device
  if replayed is not None:
    values |= {"pipo/loss": float(replayed["loss/total"].total)}
  each = parallel.gather_host([
      (m["loss/total"].total, m["optimizer/grad_norm"].total) for m in steps
  ])
  merged = summary.summarize(parallel.gather_host({**parts.merge(steps), **correction}))
  writer.write(iteration, {**values, **merged})
  for k, (loss, norm) in enumerate(each):
    if not (math.isfinite(loss) and math.isfinite(norm)):
      step = values["step"] - len(steps) + k + 1
      raise NonFiniteError(
          f"iteration {iteration}, optimizer step {step}: loss = {float(loss)}, gradient norm = "
          f"{float(norm)}. The last good checkpoint is that of iteration {checkpoints.latest()}. "
          "Fix: "
          "a smaller optimizer.learning_rate, or a bounded ratio; a new --workdir.")


def _report(parts: setup.Parts, start_params, params, directory: Path) -> dict[str, float]:
  """Samples before and after, plot, report.html and the summary on the screen."""
  before, after = evaluate.evaluate(parts, start_params), evaluate.evaluate(parts, params)
  shown = {"before": evaluate.samples(parts, params, start_params, before, SAMPLES),
           "after": evaluate.samples(parts, params, start_params, after, SAMPLES)}
  writers.write_atomically(directory / "samples.json", json.dumps(shown))
  finished = reader.read_run(directory)
  plots.plot_run(finished, directory / "curves.png")
  report = html.write_report(directory)
  tqdm.write(tables.summary_table(finished))
  tqdm.write(f"plot: {directory / 'curves.png'}\nreport: {report}")
  return after.metrics
