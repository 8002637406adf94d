"""Where a run writes, and its line of metrics."""

import logging
import math
from pathlib import Path
from typing import NamedTuple

import jax

from jaxrl_llm import parallel
from jaxrl_llm.build.evaluation_sets import EvaluationSet
from jaxrl_llm.reporting import summary
from jaxrl_llm.reporting.writers import MetricsWriter, NoWriter
from jaxrl_llm.runs.best import Best
from jaxrl_llm.runs.iteration import DeviceMetrics
from jaxrl_llm.runs.phases import Clock
from jaxrl_llm.runs.progress import Progress
from jaxrl_llm.store.checkpoints import Checkpoints
from jaxrl_llm.store.signals import Signals
from jaxrl_llm.training.train_step import NonFiniteError
from jaxrl_llm.types import merge_metrics

merged_metrics = jax.jit(merge_metrics)
LEAST_ESS = 0.1  # of ratio/ess; below it, fewer than one in ten completions carries the update
logger = logging.getLogger(__name__)


class Outputs(NamedTuple):
  """Where a run writes: its folder, what writes there, its clock, the problems it evaluates,
  the signals that may end it, and the metrics that it has warned of.
  """

  directory: Path
  checkpoints: Checkpoints
  writer: MetricsWriter | NoWriter
  best: Best
  progress: Progress
  clock: Clock
  sets: list[EvaluationSet]
  signals: Signals
  warned: set[str]

  def save(self, iteration: int, tree, wait: bool = False) -> None:
    """Begins a checkpoint, and removes best parameters that no complete checkpoint needs.

    Args:
      wait: until it is complete.
    """
    self.checkpoints.finish()
    self.best.prune()
    self.checkpoints.save(iteration, tree)
    if wait:
      self.checkpoints.finish()
      self.best.prune()


class Line(NamedTuple):
  """An iteration's metrics before they are written; see `Iteration`."""

  iteration: int
  metrics: DeviceMetrics
  values: dict[str, float]


def write_line(outputs: Outputs, line: Line) -> None:
  """Fetches an iteration's metrics and writes its line, once earlier checkpoints are complete.

  So metrics.jsonl never reaches past a checkpoint that a killed run would not find again. The
  write of a checkpoint has the time of the next iteration.

  Raises:
    NonFiniteError: a loss or gradient is not finite. The line is written first.
  """
  steps, batch, phases = line.metrics
  values = dict(line.values)
  for name, taken in phases.items():
    values |= {f"{name}/loss": float(metrics["loss/total"].total) for metrics in taken}
  each = parallel.gather_host([(step["loss/total"].total, step["optimizer/grad_norm"].total)
                               for step in steps])
  merged = summary.summarize(parallel.gather_host({**merged_metrics(steps), **batch}))
  outputs.checkpoints.finish()
  outputs.writer.write(line.iteration, values | merged)
  warn_of_few(merged, line.iteration, outputs.warned)
  for step, (loss, norm) in enumerate(each, start=int(values["step"]) - len(steps) + 1):
    if not (math.isfinite(loss) and math.isfinite(norm)):
      raise NonFiniteError(
          f"iteration {line.iteration}, optimizer step {step}: loss = {float(loss)}, gradient norm "
          f"= {float(norm)}. The last good checkpoint is that of iteration "
          f"{outputs.checkpoints.latest()}. Fix: a smaller optimizer.learning_rate, or a bounded "
          "ratio; a new --workdir.")


def warn_of_few(metrics: dict[str, float], iteration: int, warned: set[str]) -> None:
  """Warns, once in a run, that the ratios leave few completions that count.

  Args:
    warned: metrics that were warned of, to which this one is added.
  """
  share = metrics.get("ratio/ess", 1.0)
  if share < LEAST_ESS and "ratio/ess" not in warned:
    warned.add("ratio/ess")
    logger.warning(
        "iteration %d: ratio/ess = %.3f: by the ratios of whole completions, their effective "
        "number is %.1f %% of all: few decide an update whose estimator weighs by such ratios. "
        "Fix: fresher samples (updates.staleness, updates.optimizer_batches), a smaller "
        "optimizer.learning_rate, or an estimator with bounded ratios", iteration, share,
        100 * share)
