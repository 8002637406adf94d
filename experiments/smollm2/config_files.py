"""The recipes of configs/, read by their files: `configs` is no installed package."""

from pathlib import Path

from ml_collections import ConfigDict

from experiments.tables_lib.sweep_cells import module

FOLDER = Path(__file__).parents[2] / "configs"


def recipe(name: str, *arguments: str) -> ConfigDict:
  """Returns what get_config(*arguments) of configs/<name>.py returns."""
  return module(FOLDER / f"{name}.py").get_config(*arguments)
