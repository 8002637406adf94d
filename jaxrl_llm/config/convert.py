"""ConfigDict in, frozen dataclass out, and the commented listing of all keys."""

import dataclasses
import difflib
import typing
from typing import Any

from jaxrl_llm.config.sections import Config
from jaxrl_llm.fields import DEFAULT, ConfigError, Number, allowed, checked


def _as_dict(cfg) -> dict[str, Any]:
  """Nested dict of untyped references: a wrong type then meets `from_dict`, whose message knows the
  range.
  """
  from ml_collections import config_dict  # here, so that kernels and benchmarks run without it

  out = {}
  for field in dataclasses.fields(cfg):
    item = getattr(cfg, field.name)
    if dataclasses.is_dataclass(item):
      out[field.name] = _as_dict(item)
    else:
      number_unset = item == DEFAULT and not field.metadata["choices"]
      out[field.name] = config_dict.FieldReference(None if number_unset else item,
                                                   field_type=object)
  return out


def base_config():
  """ConfigDict of all keys with their defaults, for `configs/*.py` to edit."""
  from ml_collections import config_dict

  return config_dict.ConfigDict(_as_dict(Config()))


def from_dict(values, cls=Config, prefix: str = ""):
  """Frozen dataclass from a (nested) mapping.

  Raises:
    ConfigError: unknown key, wrong type, or value out of range.
  """
  if not hasattr(values, "items"):
    raise ConfigError(
        f"{prefix.rstrip('.')} = {values!r}: a section of keys was expected, not a value; "
        f"its keys are {', '.join(f.name for f in dataclasses.fields(cls))}.")
  fields = {f.name: f for f in dataclasses.fields(cls)}
  types_of = typing.get_type_hints(cls)
  built = {}
  for key, item in values.items():
    if key not in fields:
      raise ConfigError(_unknown_key(prefix, key))
    if dataclasses.is_dataclass(types_of[key]):
      built[key] = from_dict(item, types_of[key], f"{prefix}{key}.")
    else:
      built[key] = checked(prefix + key, item, types_of[key], fields[key].metadata)
  return cls(**built)


def to_dict(cfg) -> dict[str, Any]:
  """Plain nested dict that `from_dict` reads back to an equal Config (for config.json)."""
  out = {}
  for field in dataclasses.fields(cfg):
    item = getattr(cfg, field.name)
    if dataclasses.is_dataclass(item):
      out[field.name] = to_dict(item)
    elif typing.get_type_hints(type(cfg))[field.name] == Number:
      out[field.name] = {DEFAULT: None, None: "none"}.get(item, item)
    else:
      out[field.name] = list(item) if isinstance(item, tuple) else item
  return out


def _all_keys(cls=Config, prefix="") -> list[str]:
  hints = typing.get_type_hints(cls)
  keys = []
  for field in dataclasses.fields(cls):
    name = prefix + field.name
    keys += _all_keys(hints[field.name], name +
                      ".") if dataclasses.is_dataclass(hints[field.name]) else [name]
  return keys


def _unknown_key(prefix: str, key: str) -> str:
  known = _all_keys()
  full = prefix + key
  near = difflib.get_close_matches(full, known, n=1, cutoff=0.0)
  same_leaf = [k for k in known if k.rsplit(".", 1)[-1] == key]
  nearest = (same_leaf or near)[0]
  return f"unknown key {full}; nearest known key: {nearest}. `python -m jaxrl_llm.config` lists them all."


def describe(cls=Config, prefix: str = "") -> str:
  """The commented listing: one line per key with default, range and meaning."""
  hints = typing.get_type_hints(cls)
  lines = []
  for field in dataclasses.fields(cls):
    if dataclasses.is_dataclass(hints[field.name]):
      lines += ["", f"# {field.name}", describe(hints[field.name], f"{prefix}{field.name}.")]
      continue
    choices = field.metadata["choices"]
    range_ = ", ".join(map(str, choices)) if choices else allowed(field.metadata)
    comment = field.metadata["doc"] + (f" [{range_}]" if range_ else "")
    lines.append(f"{prefix + field.name + ' = ' + repr(field.default):<43} # {comment}")
  return "\n".join(lines)
