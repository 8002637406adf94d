"""Classes of the hyperparameters that methods read: made from defaults, merged, and checked."""

import dataclasses
import typing
from typing import Any

from jaxrl_llm.fields import ConfigError, option


@dataclasses.dataclass(frozen=True)
class NoNumbers:
  """The numbers of a method that reads none."""


def numbers_class(name: str, defaults: dict[str, Any]) -> type:
  """Returns a dataclass of hyperparameters for `@register(name, gain=2.0)`.

  Each number has the type of its default; with None, it is a float or None (no bound).

  Raises:
    ValueError: a default that is not a bool, an int, a float, a text or None.
  """
  if not defaults:
    return NoNumbers
  fields = []
  for number, default in defaults.items():
    if default is not None and not isinstance(default, (bool, int, float, str)):
      raise ValueError(f"{name!r}: {number} = {default!r}: a number is a bool, an int, a float, a "
                       "text or None")
    kind = float | None if default is None else type(default)
    fields.append((number, kind, option(default, f"number of {name!r}")))
  return dataclasses.make_dataclass(f"Numbers_{name}", fields, frozen=True)


def merged_class(kind: str, classes: dict[str, type]) -> type:
  """Returns one class with the hyperparameters of several methods, given by name.

  Raises:
    ConfigError: two of them have a number of the same name with different types or defaults.
  """
  owners, types, first_fields = {}, {}, {}
  for name, numbers in classes.items():
    hints = typing.get_type_hints(numbers)
    for field in dataclasses.fields(numbers):
      owner = owners.setdefault(field.name, name)
      first = first_fields.setdefault(field.name, field)
      hint = types.setdefault(field.name, hints[field.name])
      if (first.default, hint) != (field.default, hints[field.name]):
        raise ConfigError(f"{kind}.{field.name}: {owner!r} and {name!r} both read it, with "
                          f"defaults {first.default!r} and {field.default!r}. Fix: another name "
                          "for one of the two numbers.")
  fields = [(number, types[number],
             dataclasses.field(default=field.default, metadata=field.metadata))
            for number, field in first_fields.items()]
  return dataclasses.make_dataclass(f"Numbers_{kind}", fields, frozen=True)
