"""Loads the user's own files and modules, which register methods."""

import importlib
import importlib.util
import linecache
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from jaxrl_llm import registry
from jaxrl_llm.fields import ConfigError

LOADED: set[str] = set()  # the plugins whose code this process has run
LOCK = threading.RLock()  # a second thread waits until the first has run the file
logger = logging.getLogger(__name__)


def load_plugins(plugins: tuple[str, ...]) -> None:
  """Imports each plugin once: a file (`experiments/idea/estimator.py`) or a module.

  Args:
    plugins: paths ending in .py and module names; one entry may hold several, comma-separated.

  Raises:
    ConfigError: a file that does not exist, a module that cannot be imported, or code that fails,
      with its file and line.
  """
  with LOCK:
    for plugin in names(plugins):
      LOADED.add(plugin)
      if plugin.endswith(".py"):
        _load_file(plugin)
      else:
        _run(plugin, importlib.import_module, plugin)
        if sys.modules[plugin].__file__ is None:
          raise ConfigError(f"plugins = {plugin!r}: a folder, in which nothing registers anything. "
                            "Fix: the .py files in it, by commas.")


def names(plugins) -> list[str]:
  """Returns the files and modules of `plugins`, of which one entry may hold several.

  Raises:
    ConfigError: not texts.
  """
  plugins = (plugins,) if isinstance(plugins, str) else plugins or ()
  if not isinstance(plugins, (tuple, list)) or not all(isinstance(p, str) for p in plugins):
    raise ConfigError(f"plugins = {plugins!r}: a list of files or modules was expected. "
                      "Fix: --config.plugins=a.py,b.py.")
  return [os.path.expanduser(name.strip()) for entry in plugins for name in entry.split(",")
          if name.strip()]


def plugin_name(path: str) -> str:
  """Returns the module name of a plugin's file."""
  return "jaxrl_llm_plugin_" + "_".join(Path(path).resolve().parts)


def _load_file(plugin: str) -> None:
  path, name = Path(plugin), plugin_name(plugin)
  if name in sys.modules:
    return
  if not path.is_file():
    raise ConfigError(f"plugins = {plugin!r}: no such file. Fix: a path from the current folder.")
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  entries = _registered()
  sys.modules[name] = module
  try:
    _run(plugin, spec.loader.exec_module, module)
  except BaseException:
    del sys.modules[name]  # a corrected file can be loaded again
    raise
  if _registered() == entries:
    registry.EMPTY_PLUGINS.append(plugin)
    logger.warning("plugins = %r registers nothing: is a decorator missing?", plugin)


def _registered() -> list[tuple]:
  """Returns the entries of all tables, which a plugin may add to."""
  return [(table.kind, name, id(entry)) for table in registry.TABLES
          for name, entry in table.entries.items()]


def _run(plugin: str, load: Callable, argument) -> None:
  """Runs a plugin's code; what it raises becomes one line with the plugin's file and line."""
  try:
    load(argument)
  except ModuleNotFoundError as error:
    fix = "an importable module, or a .py path" if error.name == plugin else (
        f"install {error.name}, or leave the import out")
    raise ConfigError(f"plugins = {plugin!r}: {error}. Fix: {fix}.") from error
  except SyntaxError as error:
    line = (error.text or "").strip()
    place = f"{error.filename}, line {error.lineno}: " if error.lineno else ""
    raise ConfigError(f"plugins = {plugin!r}: {place}{type(error).__name__}: {error.msg}: "
                      f"{line!r}. Fix: that file.") from error
  except KeyboardInterrupt:
    raise
  except BaseException as error:  # also SystemExit, which would end the program without a word
    raise ConfigError(f"plugins = {plugin!r}: {_place(plugin, error)}{type(error).__name__}: "
                      f"{' '.join(str(error).split())[:300]}") from error


def _place(plugin: str, error: BaseException) -> str:
  """Returns the last line of the plugin's own file that an exception came through."""
  frames = [frame for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).name == Path(plugin).name]
  if not frames:
    return ""
  line = linecache.getline(frames[-1].filename, frames[-1].lineno).strip()
  return f"{frames[-1].filename}, line {frames[-1].lineno}: {line!r}: "
