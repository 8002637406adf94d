"""Fills in, clears and checks what depends on other keys, for a config or any group of sections."""

import dataclasses
from typing import Any

from jaxrl_llm.fields import ConfigError, Problems, options, unread
from jaxrl_llm.registry import Choice


def fill(cfg) -> Any:
  """Returns the sections with every number of each chosen method, by default the method's own.

  Raises:
    ConfigError: an unknown method, or a hyperparameter that the method does not read.
  """
  choices = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)
             if isinstance(getattr(cfg, f.name), Choice)}
  return dataclasses.replace(cfg, **{name: choice.table.filled(choice)
                                     for name, choice in choices.items()})


def check(cfg) -> Any:
  """Returns the config if every key that was set is read, and no section refuses it.

  Raises:
    ConfigError: names the keys, their values, and a change that works; of all that is refused.
  """
  problems = Problems()
  for prefix, section in _sections(cfg, ""):
    for _, message in unread(section, prefix, cfg):
      problems.add(ConfigError(message))
  for _, section in _sections(cfg, ""):
    if hasattr(type(section), "check"):
      with problems:
        section.check(cfg)
  problems.refuse()
  return cfg


def _sections(section, prefix: str):
  """Yields (prefix, section) for a section, the sections within it, and numbers of methods."""
  yield prefix, section
  for name, field in options(type(section)).items():
    inner = getattr(section, name)
    if "sections" in field.metadata:
      for key, subsection in inner:
        yield from _sections(subsection, f"{prefix}{name}.{key}.")
    elif dataclasses.is_dataclass(inner):
      yield from _sections(inner, f"{prefix}{name}.")
  if isinstance(section, Choice):
    yield from _sections(section.table.numbers(section), prefix)


def without_unread(cfg) -> Any:
  """Returns the sections with every option that nothing reads set to its default."""
  return _restored(cfg, cfg, "")


def _restored(section, root, prefix: str):
  """Returns `without_unread` of a section whose keys begin with `prefix`."""
  names = {name for name, _ in unread(section, prefix, root)}
  changes = {f.name: f.default for f in dataclasses.fields(section) if f.name in names}
  for name, field in options(type(section)).items():
    inner = getattr(section, name)
    if "sections" in field.metadata:
      changes[name] = tuple((key, _restored(subsection, root, f"{prefix}{name}.{key}."))
                            for key, subsection in inner)
    elif dataclasses.is_dataclass(inner):
      changes[name] = _restored(inner, root, f"{prefix}{name}.")
  if isinstance(section, Choice):
    numbers = _restored(section.table.numbers(section), root, prefix)
    changes |= {key: getattr(numbers, key) for key, _ in section.given}
  return dataclasses.replace(section, **changes)
