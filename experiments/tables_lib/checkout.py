"""The clone that tables are made in: its folders, the environment of its commands, and the sizes at
which a short version runs.

With JAXRL_FAST=1 in the environment every short version takes the smallest sizes at which it still
does all its steps; nothing else changes.
"""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "runs" / "notebook"
VARIABLE = "JAXRL_FAST"
# Sizes of a run with JAXRL_FAST=1. The vocabulary, the task and the method stay as they are.
SIZES = {
    "iterations": 2, "evaluation.every": 1, "task.heldout_problems": 16, "rollout.prompts": 8,
    "rollout.group_size": 4, "warm_start.steps": 40, "warm_start.batch_size": 16,
    "model.width": 32, "model.num_layers": 1, "model.mlp_width": 64,
}


def fast() -> bool:
  """Returns whether the smallest sizes are wanted."""
  return os.environ.get(VARIABLE) == "1"


def checkout_env() -> dict[str, str]:
  """Returns the environment in which commands import the package of this checkout."""
  folders = [str(ROOT), os.environ.get("PYTHONPATH")]
  return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def fresh(name: str) -> Path:
  """Returns a folder in RUNS that does not exist yet: `name`, `name-2`, `name-3`, ...

  A run in an old folder would resume where that ended, although an estimator in a cell may be
  another one by now.
  """
  count = 1
  while (folder := RUNS / (name if count == 1 else f"{name}-{count}")).exists():
    count += 1
  return folder
