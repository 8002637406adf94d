"""Reads the config of a run's folder, also if an older version wrote it."""

import json
import typing
from pathlib import Path

from jaxrl_llm.config import plugins as plugins_lib
from jaxrl_llm.config.checks import without_unread
from jaxrl_llm.config.convert import REMOVED, from_dict
from jaxrl_llm.config.root import Config
from jaxrl_llm.fields import ConfigError, options
from jaxrl_llm.registry import Choice


def read_saved(path: Path, fix: str) -> dict:
  """Returns the content of a run's config.json; nothing that it names is imported.

  Args:
    fix: what to do if it cannot be read, for the message.

  Raises:
    ConfigError: it is no JSON object.
  """
  try:
    content = json.loads(path.read_text())
  except (ValueError, RecursionError, OSError) as error:
    raise ConfigError(f"{path}: {error}. Fix: {fix}.") from error
  if not isinstance(content, dict):
    raise ConfigError(f"{path}: an object was expected, not {str(content)[:60]!r}. Fix: {fix}.")
  return content


def from_saved(content: dict) -> Config:
  """Returns the Config of a run's config.json, whose plugins are imported.

  Older versions wrote every key, also the hyperparameters of methods that were not chosen. Nothing
  read them, so without them the config still describes the same run.

  Raises:
    ConfigError: as `from_dict`, also for a key that only another version knows.
  """
  plugins_lib.load_plugins(content.get("plugins"))
  hints = typing.get_type_hints(Config)
  sections = {}
  for key, section in content.items():
    if isinstance(section, dict):
      section = {k: v for k, v in section.items()
                 if f"{key}.{k}" not in REMOVED or k == section.get("name")}
      if key in hints and issubclass(hints[key], Choice):
        section = _method_section(section, hints[key])
    sections[key] = section
  return without_unread(from_dict(sections))


def _method_section(section: dict, cls: type[Choice]) -> dict:
  """Returns a section with only the hyperparameters of its method.

  Older versions wrote "default" or null for a number that was not set.
  """
  name = section.get("name", cls().name)
  numbers = cls.table[name].defaults
  foreign = {key for key in section if key not in options(cls) and key not in numbers}
  foreign = {key for key in foreign if cls.table.readers(key)}
  unset = {key for key in numbers if section.get(key) in (None, "default")}
  return {key: value for key, value in section.items() if key not in foreign | unset}
