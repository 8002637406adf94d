"""Methods by name: a table for each kind, and the section of a config that names a method.

A method is a function with the hyperparameters that it reads: a small frozen dataclass of options
next to the formula. A config holds the method's name and the hyperparameters that were set
(`Choice`). The table supplies the method's defaults for the other hyperparameters.
"""

import contextlib
import dataclasses
import importlib
import inspect
import os
import typing
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from jaxrl_llm.fields import (
  ConfigError,
  PluginError,
  checked,
  derived,
  did_you_mean,
  is_exhausted,
  shown,
)
from jaxrl_llm.method_numbers import NoNumbers, merged_class, numbers_class


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

  @property
  def of_plugin(self) -> bool:
    """Returns whether the function is defined outside of the package."""
    return not getattr(self.function, "__module__", "jaxrl_llm.").startswith("jaxrl_llm.")

  @property
  def where(self) -> str:
    """Returns the place of the function: "ideas/reward.py, line 12, brevity"."""
    inner = inspect.unwrap(self.function)
    name = getattr(inner, "__qualname__", repr(inner))
    try:
      path = inspect.getsourcefile(inner)
      local_path = os.path.relpath(path)
      path = path if local_path.startswith(os.pardir) else local_path
      return f"{path}, line {inspect.getsourcelines(inner)[1]}, {name}"
    except (TypeError, OSError, ValueError):
      return name


E = TypeVar("E", bound=Entry)
TABLES: list["Table"] = []  # all of them, also those that plugins and commands bring


class Table(Generic[E]):
  """The methods of one kind.

  Args:
    kind: name of the config's section, such as "estimator"; messages show it, too.
    home: module that registers the package's own methods. It is imported when the table is first
      read, so that `config` need not import the methods.
    key: of the config, which names the method; None: `kind`.name.
    late: whether a method's module is imported when its name is looked up, by `files`.

  Attributes:
    fallback: makes the entry of a name that nothing registered, or None; set by the home module.
    files: name to the module that registers it; set by the home module.
  """

  def __init__(self, kind: str, home: str, key: str | None = None, late: bool = False):
    self.kind, self.key, self._home, self.late = kind, key or f"{kind}.name", home, late
    self.fallback: Callable[[str], E | None] | None = None
    self.entries: dict[str, E] = {}
    self.files: dict[str, str] = {}
    TABLES.append(self)

  def register(self, name: str, numbers: type | None = None, *, replace: bool = False,
               make: Callable[..., Any] = Entry, **defaults):
    """Returns a decorator that enters a function or class in the table.

    Args:
      name: value of the config key.
      numbers: frozen dataclass of the hyperparameters that it reads; `fields.option` makes its
        fields.
      replace: overwrites an entry on purpose, for notebooks that run a cell again.
      make: makes the entry of (function, numbers).
      **defaults: the hyperparameters and their defaults, instead of `numbers`; None means no bound.

    Raises:
      ValueError: no name, one that is taken, or numbers given in both ways.
    """
    if not isinstance(name, str) or not name or "," in name:
      raise ValueError(f"@register.{self.kind}({name!r}): a name is a text without commas. "
                       f'Fix: @register.{self.kind}("name")')
    if numbers is not None and defaults:
      raise ValueError(f"{self.kind} {name!r}: {sorted(defaults)} beside {numbers.__name__}; give "
                       "a class of numbers or defaults, not both")
    numbers_cls = numbers_class(name, defaults) if numbers is None else numbers

    def enter(function):
      self.add(name, make(function, numbers_cls), replace=replace)
      return function

    return enter

  @contextlib.contextmanager
  def blamed(self, name: str) -> Iterator[None]:
    """Turns an exception of a method of this table into one line that names the method's place.

    Raises:
      PluginError: for every other Exception in the block, and for sys.exit, which would end the run
        as if it had finished.
    """
    try:
      yield
    except ConfigError:
      raise
    except (Exception, SystemExit) as error:
      if is_exhausted(error):
        raise
      reason = str(error).strip().split("\n")[0][:300]
      raise PluginError(f"{self.kind} {name!r} ({self[name].where}): {type(error).__name__}: "
                        f"{reason}") from error

  def add(self, name: str, entry: E, *, replace: bool = False) -> None:
    """Enters a method.

    Raises:
      ValueError: the name is taken, and `replace` is not set.
    """
    if self.files.get(name) not in (None, getattr(entry.function, "__module__", None)):
      self._load(name)  # which would otherwise enter its own method later
    if name in self.entries and not replace:
      raise ValueError(f"{self.kind} {name!r} is registered already. Fix: another name, or "
                       "replace=True in a notebook")
    self.entries[name] = entry

  def _load(self, name: str) -> None:
    """Imports the module that registers a name, if it is one of the package."""
    importlib.import_module(self._home)
    if name not in self.entries and name in self.files:
      importlib.import_module(self.files[name])

  def names(self) -> list[str]:
    """Returns the names of all methods, sorted."""
    importlib.import_module(self._home)
    for module in dict.fromkeys(self.files.values()):
      importlib.import_module(module)
    return sorted(self.entries)

  def __iter__(self):
    return iter(self.names())

  def __len__(self) -> int:
    return len(self.names())

  def __contains__(self, name: str) -> bool:
    self._load(name)
    return name in self.entries

  def __setitem__(self, name: str, entry) -> None:
    """Replaces an entry, or only its function, as tests and notebooks do."""
    if not isinstance(entry, Entry):
      entry = dataclasses.replace(self[name], function=entry) if name in self else Entry(entry)
    self.entries[name] = entry  # type: ignore[assignment]

  def __getitem__(self, name: str) -> E:
    """Returns the entry of a name; raises ConfigError with all names if it is not registered."""
    if name not in self.entries:
      self._load(name)
    if name not in self.entries and self.fallback is not None:
      entry = self.fallback(name)
      self.entries |= {} if entry is None else {name: entry}
    names = self.names() if name not in self.entries else []
    if name not in self.entries:
      raise ConfigError(f"{self.key} = {shown(name)}: registered are {', '.join(names)}."
                        f"{did_you_mean(str(name), names)}{_empty_plugins()}")
    return self.entries[name]

  def readers(self, number: str) -> list[str]:
    """Returns the names of the methods that read a number."""
    return [name for name in self.names() if number in self.entries[name].defaults]

  def refuse_foreign(self, name: str, values: dict[str, Any]) -> None:
    """Raises if the method does not read one of the given numbers.

    Raises:
      ConfigError: names the hyperparameter, the hyperparameters of the method, and the methods that
        read it.
    """
    defaults = self[name].defaults
    for number, value in values.items():
      if number not in defaults:
        other_methods = self.readers(number)
        hint = f"; what does: {', '.join(other_methods)}" if other_methods else did_you_mean(
            number, defaults)
        raise ConfigError(f"{self.kind}.{number} = {value!r}: {name!r} does not read it; it reads "
                          f"{', '.join(sorted(defaults)) or 'no number'}{hint}. Fix: remove it.")

  def numbers(self, choice: "Choice", *, strict: bool = True):
    """Returns the hyperparameters of the chosen method, with its defaults for hyperparameters that
    were not given.

    Args:
      strict: False ignores hyperparameters that only other methods of the table read, so that one
        config can serve several methods in a comparison.

    Raises:
      ConfigError: an unknown name, a hyperparameter that the method does not read, or a value that
        the number cannot have.
    """
    entry, overrides = self[choice.name], dict(choice.given)
    if not strict:
      overrides = {n: v for n, v in overrides.items() if n in entry.defaults or not self.readers(n)}
    self.refuse_foreign(choice.name, overrides)
    hints = typing.get_type_hints(entry.numbers)
    fields = {f.name: f for f in dataclasses.fields(entry.numbers)}
    values = {n: v if dataclasses.is_dataclass(v) else
              checked(f"{self.kind}.{n}", v, hints[n], fields[n].metadata)
              for n, v in overrides.items()}
    return entry.numbers(**values)

  def filled(self, choice: "Choice") -> "Choice":
    """Returns the choice with every number of its method given; raises as `numbers`."""
    numbers = self.numbers(choice)
    values = {f.name: getattr(numbers, f.name) for f in dataclasses.fields(numbers)}
    return dataclasses.replace(choice, given=(), **values)


def _empty_plugins() -> str:
  """Returns a hint at plugins that were loaded and registered nothing."""
  files = ", ".join(EMPTY_PLUGINS)
  return f" {files} registers nothing: is a decorator missing?" if files else ""


class Combination(Table[E]):
  """A table of which a config may name several methods, comma-separated: `task,brevity`.

  They share one set of hyperparameters: one that several of them read has one value for all.
  """

  def parts(self, name: str) -> dict[str, E]:
    """Returns the entries that a config's name lists, in its order.

    Raises:
      ConfigError: an unknown name, or the same one twice.
    """
    names = [part.strip() for part in str(name).split(",")]
    if len(set(names)) < len(names):
      raise ConfigError(f"{self.key} = {name!r}: a name stands there twice. Fix: each one once.")
    if "none" in names[1:] or (names[1:] and names[0] == "none"):
      raise ConfigError(f"{self.key} = {name!r}: none stands beside others. Fix: none alone, or "
                        f"{self.key}={','.join(part for part in names if part != 'none')}.")
    return {part: super(Combination, self).__getitem__(part) for part in names}

  def __getitem__(self, name: str) -> Any:
    """Returns the entry of a name; of several, an entry with the numbers of all."""
    if "," not in str(name):
      return super().__getitem__(name)
    parts = self.parts(name)
    return Entry(self.parts, merged_class(self.kind, {n: e.numbers for n, e in parts.items()}))

  def __contains__(self, name: str) -> bool:
    return all(part.strip() in self.names() for part in str(name).split(","))


class Together(Combination):
  """A table of which every method is read, so that no key names one: "" is all of them."""

  def __getitem__(self, name: str) -> Any:
    return super().__getitem__(name or ",".join(self.names()))


@dataclasses.dataclass(frozen=True, init=False)
class Choice:
  """A method's name and the hyperparameters that were set for it.

  In `EstimatorConfig("gspo", clip_low=1e-3)` the other hyperparameters have the method's defaults,
  and are read like fields: `.clip_high`. None as a number means no bound.

  Attributes:
    name: name of the method.
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
    overrides = dict(self.given)
    if number in overrides:
      object.__setattr__(self, number, overrides[number])  # the next look-up finds it here
      return overrides[number]
    entry = self.table[self.name]
    if number not in entry.defaults:
      raise AttributeError(f"{type(self).__name__}({self.name!r}) has no number {number!r}")
    return entry.defaults[number]


EMPTY_PLUGINS: list[str] = []  # files that were loaded as plugins and registered nothing

ESTIMATORS: Table = Table("estimator", "jaxrl_llm.objective.estimators", late=True)
ADVANTAGES: Table = Table("advantage", "jaxrl_llm.objective.advantages", late=True)
AGGREGATIONS: Table = Table("aggregation", "jaxrl_llm.objective.aggregation")
LOSS_TERMS: Combination = Combination("term", "jaxrl_llm.objective.terms")
COLUMNS: Table = Table("column", "jaxrl_llm.training.columns", "needs")
VOCABULARY: Together = Together("vocabulary", "jaxrl_llm.ops.vocabulary")
TRANSFORMS: Combination = Combination("transform", "jaxrl_llm.training.transform_methods")
OPTIMIZERS: Table = Table("optimizer", "jaxrl_llm.training.optimizers")
FAMILIES: Table = Table("family", "jaxrl_llm.models.families", "model_type")
BACKENDS: Table = Table("backend", "jaxrl_llm.rollouts.backends", "rollout.backend")
SHAPINGS: Table = Table("shaping", "jaxrl_llm.tasks.shaping")
TASKS: Table = Table("task", "jaxrl_llm.tasks")
MAPPINGS: Table = Table("mapping", "jaxrl_llm.tasks.mappings", "task.data.mapping")
VERIFIERS: Table = Table("verifier", "jaxrl_llm.grading.grading", "task.data.verifier")
REWARDS: Combination = Combination("reward", "jaxrl_llm.tasks.rewards")
TOOLS: Table = Table("tool", "jaxrl_llm.rollouts.tools")
ENVIRONMENTS: Table = Table("environment", "jaxrl_llm.rollouts.environment_table")
METRIC_WRITERS: Combination = Combination("writer", "jaxrl_llm.reporting.metric_writers")
