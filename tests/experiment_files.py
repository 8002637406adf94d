"""Loads files of experiments/, which are in no package."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load(path: Path) -> ModuleType:
  """Returns the module of a file, named after its folder, so that two files `run.py` differ."""
  spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
