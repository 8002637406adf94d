"""The commented listing of all keys."""

import dataclasses
import typing

from jaxrl_llm.config.convert import NAME
from jaxrl_llm.config.sections import Config
from jaxrl_llm.fields import allowed, options
from jaxrl_llm.registry import Choice


def describe(cls=Config, prefix: str = "") -> str:
  """Returns one line per key of a section: its default, meaning, range, and when it is read.

  The numbers of a method follow a line with the method's name.
  """
  hints = typing.get_type_hints(cls)
  lines = []
  for name, field in options(cls).items():
    if "sections" in field.metadata:
      inner = f"{prefix}{name}.{NAME}"
      lines += ["", f"# {inner}: {field.metadata['doc']}",
                describe(field.metadata["sections"], f"{inner}.")]
    elif dataclasses.is_dataclass(hints[name]):
      lines += ["", f"# {prefix}{name}", describe(hints[name], f"{prefix}{name}.")]
    else:
      lines.append(_line(field, prefix, cls))
  if issubclass(cls, Choice):
    for method in cls.table.names():
      numbers = cls.table[method].numbers
      if options(numbers):
        lines += [f"# {prefix}name = {method}", describe(numbers, prefix)]
  return "\n".join(lines)


def _line(field: dataclasses.Field, prefix: str, cls) -> str:
  """Returns the line of one key."""
  meta = field.metadata
  choices = meta["choices"]
  if issubclass(cls, Choice) and field.name == "name":
    choices = cls.table.names()
  limits = ", ".join(map(str, choices)) if choices else allowed(meta)
  comment = meta["doc"] + (f" [{limits}]" if limits else "")
  for condition in meta["when"]:
    key = prefix + condition.key[1:] if condition.key.startswith(".") else condition.key
    comment += f" [with {condition.describe(key)}]"
  return f"{prefix + field.name + ' = ' + repr(field.default):<43} # {comment}"
