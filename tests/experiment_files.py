"""Loads files of experiments/, which are in no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(path: Path) -> ModuleType:
  """Returns the module of a file, named after its folder, so that two files `run.py` differ.

  It may import files beside it, as where it is run as a script; their names have to differ.
  """
  spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
  module = importlib.util.module_from_spec(spec)
  sys.path.insert(0, str(path.parent))
  try:
    spec.loader.exec_module(module)
  finally:
    sys.path.remove(str(path.parent))
  return module
