"""Loads the user's own files and modules, which register methods."""

import importlib
import importlib.util
import sys
from pathlib import Path

from jaxrl_llm.fields import ConfigError


def load_plugins(plugins: tuple[str, ...]) -> None:
  """Imports each plugin once: a file (`experiments/idea/estimator.py`) or a module.

  Args:
    plugins: paths ending in .py and module names; one entry may hold several, comma-separated.

  Raises:
    ConfigError: a file that does not exist, or a module that cannot be imported.
  """
  for plugin in (name.strip() for entry in plugins for name in entry.split(",")):
    if plugin.endswith(".py"):
      _load_file(plugin)
    elif plugin:
      try:
        importlib.import_module(plugin)
      except ImportError as error:
        raise ConfigError(f"plugins = {plugin!r}: {error}. Fix: an importable module, or a .py "
                          "path.") from error


def _load_file(plugin: str) -> None:
  path = Path(plugin)
  name = "jaxrl_llm_plugin_" + "_".join(path.resolve().parts)
  if name in sys.modules:
    return
  if not path.exists():
    raise ConfigError(f"plugins = {plugin!r}: no such file. Fix: a path from the current folder.")
  spec = importlib.util.spec_from_file_location(name, path)
  sys.modules[name] = module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
  except BaseException:
    del sys.modules[name]  # a corrected file can be loaded again
    raise
