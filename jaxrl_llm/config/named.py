"""The ConfigDict that `configs/*.py` edit, with sections whose names the user chooses."""

import dataclasses
import typing

from ml_collections import config_dict

from jaxrl_llm.config.convert import defaults
from jaxrl_llm.fields import options


class Named(config_dict.ConfigDict):
  """Sections by name. A name that is not there yet is entered with all keys, so that
  `--config.evaluation.sets.aime.path=...` needs no line in the file.

  Args:
    of: the class of the sections.
  """

  _of: type

  def __init__(self, section_cls: type | None = None):
    super().__init__()
    if section_cls is not None:  # a copy is made without arguments, by __setstate__
      object.__setattr__(self, "_of", section_cls)

  def __getitem__(self, key):
    if key not in self and isinstance(key, str) and not key.startswith("_"):
      super().__setitem__(key, config_dict_of(self._of))
    return super().__getitem__(key)

  def __setitem__(self, key, value):
    if isinstance(value, config_dict.ConfigDict):
      value = value.to_dict()
    if isinstance(value, dict):
      self[key].update(value)
    else:
      super().__setitem__(key, value)

  def __getstate__(self):
    return {**super().__getstate__(), "_of": self._of}

  def __setstate__(self, state):
    object.__setattr__(self, "_of", state["_of"])
    super().__setstate__(state)


class Open(config_dict.ConfigDict):
  """A section that admits all keys, because its methods are imported when they are chosen, or are a
  library's. `from_dict` refuses keys that the chosen method lacks.
  """

  def __getitem__(self, key):
    if key not in self and isinstance(key, str) and not key.startswith("_"):
      super().__setitem__(key, config_dict.FieldReference(None, field_type=object))
    return super().__getitem__(key)

  def __setitem__(self, key, value):
    if key not in self:
      value = config_dict.FieldReference(value, field_type=object)
    super().__setitem__(key, value)


def config_dict_of(cls: type) -> config_dict.ConfigDict:
  """Returns a ConfigDict of a section's keys with their defaults."""
  config = config_dict.ConfigDict(_references(defaults(cls, imports=False)))
  for name, hint in typing.get_type_hints(cls).items():
    table = getattr(hint, "table", None)
    if table is not None and (table.fallback is not None or table.late):
      content = config[name]
      del config[name]
      config[name] = Open()
      for key in content:
        config[name][key] = content.get_ref(key)
    for inner, field in options(hint).items() if dataclasses.is_dataclass(hint) else ():
      if "sections" in field.metadata:
        del config[name][inner]
        config[name][inner] = Named(field.metadata["sections"])
  return config


def _references(tree: dict) -> dict:
  # Untyped references, so that `from_dict` refuses a wrong type: its message gives the range.
  return {key: _references(subtree) if isinstance(subtree, dict) else
          config_dict.FieldReference(subtree, field_type=object) for key, subtree in tree.items()}
