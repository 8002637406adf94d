"""Parts of the package that are imported when they are first used: a run loads what it needs."""

import importlib
from collections.abc import Callable
from typing import Any


class Late:
  """A function or class by its dotted path, imported when it is first called."""

  def __init__(self, path: str):
    self.path = path

  @property
  def __wrapped__(self):
    module, _, name = self.path.rpartition(".")
    return getattr(importlib.import_module(module), name)

  def __call__(self, *arguments, **options):
    return self.__wrapped__(*arguments, **options)


def loaded(function: Callable) -> Callable:
  """Returns what a `Late` stands for; any other function as it is."""
  return function.__wrapped__ if isinstance(function, Late) else function


def late_names(package: str, modules: dict[str, str]) -> Callable[[str], Any]:
  """Returns the `__getattr__` of a package whose names are those of modules not yet imported.

  Args:
    package: `__name__` of the package.
    modules: name to the dotted path of the module that defines it.
  """
  def find(name: str) -> Any:
    if name not in modules:
      raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(modules[name]), name)

  return find
