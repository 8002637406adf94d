"""One configuration field: its documentation and range, and the check of a value against them."""

import dataclasses
import difflib
import types
import typing

DEFAULT = "default"
# an estimator's number: unset (DEFAULT), a number, or None for no bound
Number = float | str | None


class ConfigError(Exception):
  """A configuration that cannot run: the message names key, value, allowed range and fix."""


def option(default, doc: str, *, low=None, high=None, choices=None, of=str):
  """A config field with its documentation and closed range [low, high], or its list of allowed
  values.

  Args:
    of: for a tuple, the type of its entries.
  """
  metadata = {"doc": doc, "low": low, "high": high, "choices": choices, "of": of}
  return dataclasses.field(default=default, metadata=metadata)


def number(doc: str, *, low=None, high=None):
  """An estimator number: unset until the registry or the user gives it."""
  return option(DEFAULT, doc, low=low, high=high)


def did_you_mean(name: str, known) -> str:
  """A hint at the nearest of the known names, or nothing where none is near."""
  near = difflib.get_close_matches(name, known, n=1)
  return f" Did you mean {near[0]!r}?" if near else ""


def checked(key: str, item, hint, meta):
  """`item` converted to the field's type and compared with its range."""
  if hint == Number:
    if item is None or item == DEFAULT:
      return DEFAULT
    if isinstance(item, str) and item.lower() == "none":
      return None
  elif item is None or item == DEFAULT:
    if item is None and _admits(hint, type(None)):
      return None
    if meta.get("choices") is None and _admits(hint, str) and hint is not str:
      return DEFAULT
  elif _admits(hint, type(None)) and isinstance(item, str) and item.lower() == "none":
    return None
  converted = _converted(item, hint)
  if isinstance(converted, tuple) and not all(isinstance(i, meta["of"]) for i in converted):
    converted = None
  if converted is None:
    raise ConfigError(
        f"{key} = {item!r}: {_type_name(hint)} was expected ({allowed(meta) or meta['doc']}). "
        f"Fix: --config.{key}=<{_type_name(hint)}>.")
  if meta["choices"] and converted not in meta["choices"]:
    raise ConfigError(f"{key} = {item!r}: allowed are {', '.join(map(repr, meta['choices']))}."
                      + did_you_mean(str(converted), meta["choices"]))
  low, high = meta["low"], meta["high"]
  if not isinstance(converted, (str, tuple, bool)):
    if not (converted == converted and abs(converted) != float("inf")) or (
        low is not None and converted < low) or (high is not None and converted > high):
      raise ConfigError(f"{key} = {item!r}: out of range; {allowed(meta)} ({meta['doc']}). "
                        f"Fix: choose a value in the range.")
  return converted


def _admits(hint, kind) -> bool:
  return hint is kind or kind in typing.get_args(hint)


def _converted(item, hint):
  """Value in the field's type, or None where it does not fit."""
  if isinstance(item, bool):
    return item if _admits(hint, bool) else None
  if isinstance(item, int):
    return item if _admits(hint, int) else float(item) if _admits(hint, float) else None
  if isinstance(item, float):
    return item if _admits(
        hint, float) else int(item) if _admits(hint, int) and item.is_integer() else None
  if isinstance(item, str):
    return item if hint is str else (item,) if hint is tuple else None
  if isinstance(item, (list, tuple)):
    return _nested(item) if hint is tuple else None
  return None


def _nested(item):
  """Tuples all the way down, so that a config stays hashable."""
  return tuple(_nested(i) if isinstance(i, (list, tuple)) else i for i in item)


def _type_name(hint) -> str:
  if isinstance(hint, types.UnionType):
    kinds = [a.__name__ for a in typing.get_args(hint) if a not in (str, type(None))]
    return " or ".join(kinds) + (' or "none"' if hint == Number else "")
  return hint.__name__


def allowed(meta) -> str:
  low, high = meta["low"], meta["high"]
  if low is None and high is None:
    return ""
  return f"allowed: {'-inf' if low is None else low} to {'inf' if high is None else high}"
