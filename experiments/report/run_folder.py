"""A run as its folder describes it: config, metrics and completions."""

import dataclasses
import os
from typing import Any

import numpy as np

from jaxrl_llm.reporting.reader import read_json, read_metrics
from jaxrl_llm.store.files import rollout_files, rollout_part, rollout_path
from jaxrl_llm.store.folders import path_of


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """One run as its folder describes it; the run may still be running.

  Attributes:
    workdir: the folder.
    config: resolved configuration, nested.
    environment: versions, devices, git commit; empty if the file is missing.
    metrics: one dict per iteration, sorted; key "iteration" is an int, all others are floats.
  """

  workdir: str
  config: dict[str, Any]
  environment: dict[str, Any]
  metrics: list[dict[str, Any]]

  def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns (iterations [I] int that logged `name`, its values [I] float)."""
    lines = [line for line in self.metrics if name in line]
    iterations = np.array([line["iteration"] for line in lines], int)
    return iterations, np.array([line[name] for line in lines], float)

  def rollout_iterations(self) -> list[int]:
    """Returns the iterations whose rollouts were kept, by all processes, sorted."""
    return sorted(iteration for iteration, paths in rollout_files(self.workdir).items()
                  if len(paths) == rollout_part(paths[0])[1])

  def rollouts(self, iteration: int) -> list[dict[str, Any]]:
    """Returns the rows of an iteration as written; rows of several processes are in the processes'
    order.

    Per-token entries are arrays [length], also where an earlier version wrote lists. A non-finite
    number of another entry is the text "nan", "inf" or "-inf", which `np.asarray(x, float)` reads.

    Raises:
      RunError: a file is missing or damaged.
    """
    none = [rollout_path(self.workdir, iteration)]  # what is missing is named in the error
    paths = rollout_files(self.workdir).get(iteration, none)
    from experiments.report.rollout_rows import read_rollouts  # most readers read metrics only
    return [row for path in paths for row in read_rollouts(path)]


def read_run(workdir: str | os.PathLike) -> RunFolder:
  """Reads the run in `workdir`, also while the run is writing.

  Raises:
    RunError: config.json or metrics.jsonl is missing, or a line is not what the writer writes.
  """
  workdir = os.fspath(workdir)
  environment = os.path.join(workdir, "environment.json")
  return RunFolder(
      workdir,
      config=read_json(os.path.join(workdir, "config.json")),
      environment=read_json(environment) if path_of(environment).exists() else {},
      metrics=read_metrics(os.path.join(workdir, "metrics.jsonl")),
  )
