"""The table of advantages: how one is entered, what it needs, and how one is called by name."""

import dataclasses
import functools

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.registry import ADVANTAGES, Entry, numbers_class
from jaxrl_llm.types import AdvantageInputs

OPTIONAL = tuple(f.name for f in dataclasses.fields(AdvantageInputs) if f.default is None)


@dataclasses.dataclass(frozen=True)
class Spec(Entry):
  """An advantage.

  Attributes:
    function: `advantage(inputs, cfg) -> [B, L]`, constants without gradient; `cfg` is an instance
      of `numbers`.
    needs: AdvantageInputs fields beyond the required ones. An advantage that needs `values` has a
      critic trained beside the policy.
    group: whether it compares the rows of a group, so that G must exceed 1.
    options: fields that are needed too, as (((number, value), fields), ...).
  """

  needs: frozenset[str] = frozenset()
  group: bool = True
  options: tuple = ()

  def required(self, numbers) -> frozenset[str]:
    """The AdvantageInputs fields that are needed with these numbers."""
    return self.needs.union(*(fields for (number, value), fields in self.options
                              if getattr(numbers, number) == value))


def register(name: str, numbers: type | None = None, *, needs: set[str] = frozenset(),
             group: bool = True, options: dict[tuple[str, str], set[str]] | None = None,
             replace: bool = False, **defaults):
  """Decorator that enters an advantage, see `Spec`.

  Args:
    name: key of `advantage.name`.
    numbers: frozen dataclass of the numbers that the function reads, its fields made by
      `fields.option`.
    needs: optional fields of AdvantageInputs that it reads.
    group: whether it compares the rows of a group.
    options: further fields by number and value, {("granularity", "turn"): {"turn_id"}}.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
    **defaults: the numbers and their defaults, instead of `numbers`.

  Raises:
    ValueError: the name is taken, `needs` or `options` names no optional field of AdvantageInputs,
      or numbers are given in both ways.
  """
  options = options or {}
  if numbers is not None and defaults:
    raise ValueError(f"advantage {name!r}: {sorted(defaults)} beside {numbers.__name__}; give a "
                     "class of numbers, or defaults")
  made = numbers_class(name, defaults) if numbers is None else numbers
  if name in ADVANTAGES.entries and not replace:
    raise ValueError(f"advantage {name!r} is registered already; another name, or replace=True in "
                     "a notebook")
  unknown = sorted(set(needs).union(*options.values()) - set(OPTIONAL))
  if unknown:
    raise ValueError(f"advantage {name!r} needs {unknown}; allowed are {list(OPTIONAL)}")

  def enter(function):
    entry = Spec(function, made, frozenset(needs), group, tuple(options.items()))
    ADVANTAGES.add(name, entry, replace=replace)
    return function

  return enter


def names() -> list[str]:
  return ADVANTAGES.names()


def spec(name: str) -> Spec:
  """The entry; raises ConfigError listing the table for a name that is not in it."""
  return ADVANTAGES[name]


def needs(cfg: AdvantageConfig) -> frozenset[str]:
  """The optional AdvantageInputs that the advantage reads under `cfg`, for a trainer to compute."""
  return spec(cfg.name).required(ADVANTAGES.numbers(cfg, strict=False))


def get_advantage(name: str):
  """The advantage, taking an AdvantageConfig whose numbers may be left out.

  Numbers that only other advantages read are ignored here, so that one config can serve several in
  a comparison; a run refuses them. Inputs that lack what the advantage needs raise ValueError.
  """
  entry = spec(name)

  @functools.wraps(entry.function)
  def advantage(inputs: AdvantageInputs, cfg: AdvantageConfig):
    numbers = ADVANTAGES.numbers(dataclasses.replace(cfg, name=name), strict=False)
    missing = sorted(n for n in entry.required(numbers) if getattr(inputs, n) is None)
    if missing:
      because = ", ".join(f"advantage.{number} = {value!r} reads {', '.join(sorted(fields))}"
                          for (number, value), fields in entry.options
                          if getattr(numbers, number) == value)
      raise ValueError(f"advantage {name!r} needs {missing} in its inputs"
                       f"{because and ': ' + because}")
    return entry.function(inputs, numbers)

  return advantage
