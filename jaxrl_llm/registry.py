"""Methods by name: a table for each kind, and the section of a config that names a method.

A method is a function with the numbers that it reads: a small frozen dataclass of options beside
the formula. A config holds the method's name and the numbers that were set (`Choice`). The table
supplies the method's defaults for the other numbers.
"""

import dataclasses
import importlib
import typing
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from jaxrl_llm.fields import ConfigError, derived, did_you_mean, option


@dataclasses.dataclass(frozen=True)
class NoNumbers:
  """The numbers of a method that reads none."""


@dataclasses.dataclass(frozen=True)
class Entry:
  """A method in a table.

  Attributes:
    function: the method itself; its signature depends on the kind.
    numbers: frozen dataclass of the options that it reads, each with a default.
  """

  function: Callable
  numbers: type = NoNumbers

  @property
  def defaults(self) -> dict[str, Any]:
    """Returns the default of each number by its name."""
    return {f.name: f.default for f in dataclasses.fields(self.numbers)}


E = TypeVar("E", bound=Entry)


class Table(Generic[E]):
  """The methods of one kind.

  Args:
    kind: name of the config's section, such as "estimator"; messages show it, too.
    home: module that registers the package's own methods. It is imported when the table is first
      read, so that `config` need not import the methods.
  """

  def __init__(self, kind: str, home: str):
    self.kind, self._home = kind, home
    self.entries: dict[str, E] = {}

  def declare(self, name: str, numbers: type | None, defaults: dict[str, Any],
              replace: bool) -> type:
    """Returns the numbers of a new method, from their class or from their defaults.

    Raises:
      ValueError: the name is taken and `replace` is False, or numbers are given in both ways.
    """
    if numbers is not None and defaults:
      raise ValueError(f"{self.kind} {name!r}: {sorted(defaults)} beside {numbers.__name__}; give "
                       "a class of numbers or defaults, not both")
    self._refuse_taken(name, replace)
    return numbers_class(name, defaults) if numbers is None else numbers

  def _refuse_taken(self, name: str, replace: bool) -> None:
    if name in self.entries and not replace:
      raise ValueError(f"{self.kind} {name!r} is registered already. Fix: another name, or "
                       "replace=True in a notebook")

  def add(self, name: str, entry: E, *, replace: bool = False) -> None:
    """Enters a method.

    Raises:
      ValueError: the name is taken, and `replace` is not set.
    """
    self._refuse_taken(name, replace)
    self.entries[name] = entry

  def names(self) -> list[str]:
    """Returns the names of all methods, sorted."""
    importlib.import_module(self._home)
    return sorted(self.entries)

  def __iter__(self):
    return iter(self.names())

  def __len__(self) -> int:
    return len(self.names())

  def __contains__(self, name: str) -> bool:
    return name in self.names()

  def get(self, name: str, default=None) -> E | None:
    """Returns the entry of a name, or `default` if it is not registered."""
    return self.entries[name] if name in self else default

  def __setitem__(self, name: str, entry) -> None:
    """Replaces an entry, or only its function, as tests and notebooks do."""
    if not isinstance(entry, Entry):
      entry = dataclasses.replace(self[name], function=entry) if name in self else Entry(entry)
    self.entries[name] = entry

  def __delitem__(self, name: str) -> None:
    del self.entries[name]

  def __getitem__(self, name: str) -> E:
    """Returns the entry of a name; raises ConfigError with all names if it is not registered."""
    if name not in self.entries:
      known = self.names()
      if name not in self.entries:
        raise ConfigError(f"{self.kind}.name = {name!r}: registered are {', '.join(known)}."
                          f"{did_you_mean(str(name), known)}")
    return self.entries[name]

  def readers(self, number: str) -> list[str]:
    """Returns the names of the methods that read a number."""
    return [name for name in self.names() if number in self.entries[name].defaults]

  def refuse_foreign(self, name: str, given: dict[str, Any]) -> None:
    """Raises if the method does not read one of the given numbers.

    Raises:
      ConfigError: names the number, the numbers of the method, and the methods that read it.
    """
    own = self[name].defaults
    for number, value in given.items():
      if number not in own:
        others = self.readers(number)
        does = f"; what does: {', '.join(others)}" if others else did_you_mean(number, own)
        raise ConfigError(f"{self.kind}.{number} = {value!r}: {name!r} does not read it; it reads "
                          f"{', '.join(sorted(own)) or 'no number'}{does}. Fix: remove it.")

  def numbers(self, choice: "Choice", *, strict: bool = True):
    """Returns the numbers of the chosen method, with its defaults for those that were not given.

    Args:
      strict: False ignores numbers that only other methods of the table read, so that one config
        can serve several methods in a comparison.

    Raises:
      ConfigError: an unknown name, a number that the method does not read, or a value that the
        number cannot have.
    """
    entry, given = self[choice.name], dict(choice.given)
    if not strict:
      given = {n: v for n, v in given.items() if n in entry.defaults or not self.readers(n)}
    self.refuse_foreign(choice.name, given)
    hints = typing.get_type_hints(entry.numbers)
    values = {n: _plain(f"{self.kind}.{n}", value, hints[n], entry) for n, value in given.items()}
    return entry.numbers(**values)

  def filled(self, choice: "Choice") -> "Choice":
    """Returns the choice with every number of its method given; raises as `numbers`."""
    numbers = self.numbers(choice)
    values = {f.name: getattr(numbers, f.name) for f in dataclasses.fields(numbers)}
    return dataclasses.replace(choice, given=(), **values)


def _plain(key: str, value, hint, entry: Entry):
  """Returns a number that was set in Python, with "none" as None.

  Its range is not checked here but where a config is read.
  """
  number = key.rsplit(".", 1)[-1]
  field = {f.name: f for f in dataclasses.fields(entry.numbers)}[number]
  if isinstance(value, str) and value.lower() == "none" and "none" not in (
      field.metadata.get("choices") or ()):
    value = None
  if value is None and type(None) not in typing.get_args(hint):
    raise ConfigError(f"{key} = 'none': this number is not a bound, so it needs a value. "
                      f"Fix: leave it out (default {field.default}).")
  if hint is bool and not isinstance(value, bool):
    raise ConfigError(f"{key} = {value!r}: allowed are True and False.")
  choices = field.metadata.get("choices")
  if choices and value not in choices:
    raise ConfigError(f"{key} = {value!r}: allowed are {', '.join(map(repr, choices))}.")
  return value


@dataclasses.dataclass(frozen=True, init=False)
class Choice:
  """A method's name and the numbers that were set for it.

  In `EstimatorConfig("gspo", clip_low=1e-3)` the other numbers have the method's defaults, and are
  read like fields: `.clip_high`. None as a number means no bound.

  Attributes:
    name: of the method.
    given: ((number, value), ...), sorted by number.
  """

  name: str
  given: tuple = derived((), "numbers that were set")
  table: ClassVar[Table]

  def __init__(self, name: str | None = None, given: tuple = (), **numbers):
    for field in dataclasses.fields(self):
      if field.name not in ("name", "given"):
        object.__setattr__(self, field.name, numbers.pop(field.name, field.default))
      elif field.name == "name":
        object.__setattr__(self, "name", field.default if name is None else name)
    object.__setattr__(self, "given", tuple(sorted({**dict(given), **numbers}.items())))

  def __getattr__(self, number: str):
    if number.startswith("__") or number in ("name", "given"):
      raise AttributeError(number)
    given = dict(self.given)
    if number in given:
      return given[number]
    entry = self.table[self.name]
    if number not in entry.defaults:
      raise AttributeError(f"{type(self).__name__}({self.name!r}) has no number {number!r}")
    return entry.defaults[number]


def numbers_class(name: str, defaults: dict[str, Any]) -> type:
  """Returns a dataclass of numbers for `@register(name, gain=2.0)`.

  Each number has the type of its default; with None, it is a float or None (no bound).

  Raises:
    ValueError: a default that is not a bool, an int, a float, a text or None.
  """
  if not defaults:
    return NoNumbers
  made = []
  for number, default in defaults.items():
    if default is not None and not isinstance(default, (bool, int, float, str)):
      raise ValueError(f"{name!r}: {number} = {default!r}: a number is a bool, an int, a float, a "
                       "text or None")
    kind = float | None if default is None else type(default)
    made.append((number, kind, option(default, f"number of {name!r}")))
  return dataclasses.make_dataclass(f"Numbers_{name}", made, frozen=True)


ESTIMATORS: Table = Table("estimator", "jaxrl_llm.objective.estimators")
ADVANTAGES: Table = Table("advantage", "jaxrl_llm.objective.advantages")
AGGREGATIONS: Table = Table("aggregation", "jaxrl_llm.objective.aggregation")
SHAPINGS: Table = Table("shaping", "jaxrl_llm.tasks.shaping")
TASKS: Table = Table("task", "jaxrl_llm.tasks")
