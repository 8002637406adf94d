"""From a nested mapping (a ConfigDict, a JSON file) to the frozen Config, and back."""

import dataclasses
import difflib
import re
import typing
from typing import Any

from jaxrl_llm import paper_table
from jaxrl_llm.config.plugins import load_plugins
from jaxrl_llm.config.sections import Config
from jaxrl_llm.fields import ConfigError, admits, checked, options
from jaxrl_llm.registry import Choice

NAME = "<name>"  # of a section whose name the user chooses, in listings and messages


def defaults(cls) -> dict[str, Any]:
  """Returns a nested dict of a section's keys, with the numbers of all methods as None."""
  hints, out = typing.get_type_hints(cls), {}
  for name, field in options(cls).items():
    if "sections" in field.metadata:
      out[name] = {}
    else:
      inner = dataclasses.is_dataclass(hints[name])
      out[name] = defaults(hints[name]) if inner else field.default
  if issubclass(cls, Choice):
    for method in cls.table.names():
      out |= {key: item for key, item in _unset(cls.table[method].numbers).items()
              if key not in out}
  return out


def _unset(cls) -> dict[str, Any]:
  """Returns a nested dict of the keys of a class of numbers, all None."""
  hints = typing.get_type_hints(cls)
  return {name: _unset(hints[name]) if dataclasses.is_dataclass(hints[name]) else None
          for name in options(cls)}


def keys() -> list[str]:
  """Returns all keys of a config in full, also the numbers of loaded plugins.

  `<name>` stands for a name that the user chooses.
  """
  found = list(_flat(defaults(Config)))
  hints = typing.get_type_hints(Config)
  for outer, hint in hints.items():
    for name, field in options(hint).items() if dataclasses.is_dataclass(hint) else ():
      if "sections" in field.metadata:
        found += _flat(defaults(field.metadata["sections"]), f"{outer}.{name}.{NAME}.")
  return found


def _flat(tree: dict, prefix: str = ""):
  for key, item in tree.items():
    if isinstance(item, dict):
      yield from _flat(item, f"{prefix}{key}.")
    else:
      yield prefix + key


def from_dict(values) -> Config:
  """Returns the Config of a nested mapping; loads its plugins before any name is looked up.

  Raises:
    ConfigError: an unknown key, a wrong type, a value out of range, or a number that the method
      does not read.
  """
  plugins = values.get("plugins") if hasattr(values, "items") else None
  if plugins:
    load_plugins(checked("plugins", plugins, tuple, options(Config)["plugins"].metadata))
  return _section(values, Config, "")


def _section(values, cls, prefix: str):
  if not hasattr(values, "items"):
    raise ConfigError(f"{prefix.rstrip('.')} = {values!r}: a section of keys was expected, not a "
                      f"value; its keys are {', '.join(options(cls))}.")
  own = options(cls)
  hints = typing.get_type_hints(cls)
  built = {key: _value(item, hints[key], own[key], prefix + key)
           for key, item in values.items() if key in own and not _left_out(item, hints[key])}
  others = {key: item for key, item in values.items() if key not in own}
  if issubclass(cls, Choice):
    built |= _numbers(others, cls, built.get("name", own["name"].default), prefix)
  elif others:
    raise ConfigError(_unknown_key(prefix + next(iter(others))))
  return cls(**built)


def _left_out(item, hint) -> bool:
  """Whether None leaves a key out: that of a section, or of an option that is never None itself."""
  return item is None and not admits(hint, type(None))


def _value(item, hint, field, key: str):
  if "sections" in field.metadata:
    return _named(item, field.metadata["sections"], key)
  if dataclasses.is_dataclass(hint):
    return _section(item, hint, key + ".")
  return checked(key, item, hint, field.metadata)


def _named(values, cls, key: str) -> tuple:
  """Returns ((name, section), ...), sorted, so that equal configs are equal in any order."""
  if not hasattr(values, "items"):
    raise ConfigError(f"{key} = {values!r}: sections by name were expected. Fix: "
                      f"--config.{key}.{NAME}.{next(iter(options(cls)))}=...")
  for name, item in values.items():
    if not re.fullmatch(r"[A-Za-z0-9_-]+", str(name)):
      raise ConfigError(f"{key}: the name {name!r}; allowed are letters, digits, _ and -. Fix: "
                        "another name.")
    if not hasattr(item, "items"):
      raise ConfigError(f"{key}.{name} = {item!r}: a section of keys was expected, not a value; "
                        f"its keys are {', '.join(options(cls))}.")
  return tuple((str(name), _section(values[name], cls, f"{key}.{name}."))
               for name in sorted(values))


def _numbers(values, cls, name: str, prefix: str) -> dict[str, Any]:
  """Returns the numbers that were set for a method, without None and empty sections."""
  given = {key: _given(item) for key, item in values.items()}
  given = {key: item for key, item in given.items() if item not in (None, {})}
  fields = options(cls.table[name].numbers)
  for key in given:
    if key not in fields and not cls.table.readers(key):
      raise ConfigError(_unknown_key(prefix + key))
  cls.table.refuse_foreign(name, given)
  hints = typing.get_type_hints(cls.table[name].numbers)
  return {key: _value(item, hints[key], fields[key], prefix + key) for key, item in given.items()}


def _given(item):
  """Returns the item; of a section, only the keys that were set."""
  if not hasattr(item, "items"):
    return item
  return {key: value for key, value in item.items() if value is not None}


def to_dict(cfg) -> dict[str, Any]:
  """Returns a plain nested dict, from which `from_dict` makes an equal Config (for config.json)."""
  out = {name: {key: to_dict(item) for key, item in getattr(cfg, name)}
         if "sections" in field.metadata else _plain(getattr(cfg, name))
         for name, field in options(type(cfg)).items()}
  if isinstance(cfg, Choice):
    # None would stand for the method's default.
    out |= {key: "none" if item is None else _plain(item) for key, item in cfg.given}
  return out


def _plain(item):
  if dataclasses.is_dataclass(item):
    return to_dict(item)
  return list(item) if isinstance(item, tuple) else item


def _unknown_key(full: str) -> str:
  known = [_with_name(key, full) for key in keys()]
  near = difflib.get_close_matches(full, known, n=1, cutoff=0.0)
  same_leaf = [k for k in known if k.rsplit(".", 1)[-1] == full.rsplit(".", 1)[-1]]
  if now := paper_table.key_now(full):
    return f"unknown key {full}.{now}"
  return (f"unknown key {full}; nearest known key: {(same_leaf or near)[0]}. "
          "`python -m jaxrl_llm.config` lists them all.")


def _with_name(key: str, full: str) -> str:
  """Returns `key` with the name that `full` has in place of NAME, if it has one."""
  before, named, after = key.partition(f".{NAME}.")
  if not named or not full.startswith(before + "."):
    return key
  return f"{before}.{full[len(before) + 1:].split('.')[0]}.{after}"
