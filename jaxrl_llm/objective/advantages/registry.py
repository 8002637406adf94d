"""The table of advantages. Each registration declares which optional AdvantageInputs it needs."""

import dataclasses
import functools
from collections.abc import Callable

from jaxrl_llm.config import AdvantageConfig, ConfigError
from jaxrl_llm.fields import did_you_mean
from jaxrl_llm.types import AdvantageInputs

OPTIONAL = tuple(f.name for f in dataclasses.fields(AdvantageInputs) if f.default is None)
NUMBERS = tuple(f.name for f in dataclasses.fields(AdvantageConfig) if f.name != "name")


@dataclasses.dataclass(frozen=True)
class Spec:
  """One entry.

  Attributes:
    function: `advantage(inputs, cfg) -> [B, L]`.
    needs: AdvantageInputs fields beyond the required ones, whatever the options.
    group: compares rows of a group, so G must exceed 1.
    options: fields that are needed too, as {(option, value): fields}.
    reads: AdvantageConfig fields beside `name` that change it; setting another one is refused.
  """

  function: Callable
  needs: frozenset[str]
  group: bool
  options: tuple = ()
  reads: frozenset[str] = frozenset()

  def required(self, cfg: AdvantageConfig) -> frozenset[str]:
    return self.needs.union(
        *(fields for (option, value), fields in self.options if getattr(cfg, option) == value))


_TABLE: dict[str, Spec] = {}


def register(name: str, *, needs: set[str] = frozenset(), group: bool = True,
             options: dict[tuple[str, str], set[str]] | None = None, reads: set[str] = frozenset(),
             replace: bool = False):
  """Decorator that enters `advantage(inputs, cfg) -> [B, L]`, constants without gradient.

  Args:
    name: as in `advantage.name`.
    needs: optional fields of AdvantageInputs that it reads.
    group: whether it compares the rows of a group.
    options: further fields by option and value, {("granularity", "turn"): {"turn_id"}}.
    reads: fields of AdvantageConfig that it reads.
    replace: overwrite an entry of this name.

  Raises:
    ValueError: the name is taken, `needs` or `options` names no optional field of AdvantageInputs,
    or `reads` no field
      of AdvantageConfig.
  """
  options = options or {}
  foreign = sorted(set(reads) - set(NUMBERS))
  if foreign:
    raise ValueError(f"advantage {name!r} reads {foreign}; AdvantageConfig has {list(NUMBERS)}")
  if name in _TABLE and not replace:
    raise ValueError(
        f"advantage {name!r} is registered already; another name, or replace=True in a notebook")
  unknown = sorted(set(needs).union(*options.values()) - set(OPTIONAL))
  if unknown:
    raise ValueError(f"advantage {name!r} needs {unknown}; allowed are {list(OPTIONAL)}")

  def enter(function):
    _TABLE[name] = Spec(function, frozenset(needs), group, tuple(options.items()), frozenset(reads))
    return function

  return enter


def names() -> list[str]:
  return sorted(_TABLE)


def spec(name: str) -> Spec:
  if name not in _TABLE:
    raise ConfigError(
        f"advantage.name = {name!r}: registered are "
        f"{', '.join(names())}.{did_you_mean(name, names())}"
    )
  return _TABLE[name]


def needs(cfg: AdvantageConfig) -> frozenset[str]:
  """Optional AdvantageInputs that `cfg.name` reads under the options of `cfg`; what a trainer has
  to compute.
  """
  return spec(cfg.name).required(cfg)


def readers() -> dict[str, set[str]]:
  """Field of AdvantageConfig -> the advantages that read it."""
  return {
      field: {name for name, entry in _TABLE.items() if field in entry.reads} for field in NUMBERS
  }


def get_advantage(name: str):
  """The advantage; it refuses inputs that lack what it needs under the given options."""
  entry = spec(name)

  @functools.wraps(entry.function)
  def advantage(inputs: AdvantageInputs, cfg: AdvantageConfig):
    missing = sorted(n for n in entry.required(cfg) if getattr(inputs, n) is None)
    if missing:
      because = ", ".join(f"advantage.{option} = {value!r} reads {', '.join(sorted(fields))}"
                          for (option, value), fields in entry.options
                          if getattr(cfg, option) == value)
      raise ValueError(
          f"advantage {name!r} needs {missing} in its inputs{because and ': ' + because}")
    return entry.function(inputs, cfg)

  return advantage
