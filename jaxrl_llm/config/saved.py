"""Reads the config of a run's folder, also if an older version wrote it."""

import typing

from jaxrl_llm.config.checks import without_unread
from jaxrl_llm.config.convert import from_dict
from jaxrl_llm.config.plugins import load_plugins
from jaxrl_llm.config.sections import Config
from jaxrl_llm.fields import options
from jaxrl_llm.registry import Choice

REMOVED = {"model": ("value_head",)}  # Former keys, whose values follow from other keys.


def from_saved(content: dict) -> Config:
  """Returns the Config of a run's config.json.

  Older versions wrote every key, also the numbers of methods that were not chosen. Nothing read
  them, so without them the config still describes the same run.

  Raises:
    ConfigError: as `from_dict`, also for a key that only another version knows.
  """
  load_plugins(tuple(content.get("plugins") or ()))
  hints = typing.get_type_hints(Config)
  known = {}
  for key, item in content.items():
    if isinstance(item, dict):
      item = {k: v for k, v in item.items() if k not in REMOVED.get(key, ())}
      if key in hints and issubclass(hints[key], Choice):
        item = _own(item, hints[key])
    known[key] = item
  return without_unread(from_dict(known))


def _own(item: dict, cls: type[Choice]) -> dict:
  """Returns a section with only the numbers of its method.

  Older versions wrote "default" or null for a number that was not set.
  """
  name = item.get("name", options(cls)["name"].default)
  numbers = cls.table[name].defaults
  foreign = {key for key in item if key not in options(cls) and key not in numbers}
  foreign = {key for key in foreign if cls.table.readers(key)}
  unset = {key for key in numbers if item.get(key) in (None, "default")}
  return {key: value for key, value in item.items() if key not in foreign | unset}
