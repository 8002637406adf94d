"""The table of advantages. Each registration declares which optional AdvantageInputs it needs."""

import dataclasses
import functools
from collections.abc import Callable

from jaxrl_llm.config import AdvantageConfig, ConfigError
from jaxrl_llm.fields import did_you_mean
from jaxrl_llm.types import AdvantageInputs

OPTIONAL = tuple(f.name for f in dataclasses.fields(AdvantageInputs) if f.default is None)


@dataclasses.dataclass(frozen=True)
class Spec:
  """needs: AdvantageInputs fields beyond the required ones; group: compares rows of a group, so G must exceed 1."""

  function: Callable
  needs: frozenset[str]
  group: bool


_TABLE: dict[str, Spec] = {}


def register(name: str, *, needs: set[str] = frozenset(), group: bool = True, replace: bool = False):
  """Decorator that enters `advantage(inputs, cfg) -> [B, L]`, constants without gradient.

  Raises:
    ValueError: the name is taken, or `needs` names no optional field of AdvantageInputs.
  """
  if name in _TABLE and not replace:
    raise ValueError(f"advantage {name!r} is registered already; another name, or replace=True in a notebook")
  if set(needs) - set(OPTIONAL):
    raise ValueError(f"advantage {name!r} needs {sorted(set(needs) - set(OPTIONAL))}; allowed are {list(OPTIONAL)}")

  def enter(function):
    _TABLE[name] = Spec(function, frozenset(needs), group)
    return function

  return enter


def names() -> list[str]:
  return sorted(_TABLE)


def spec(name: str) -> Spec:
  if name not in _TABLE:
    raise ConfigError(f"advantage.name = {name!r}: registered are {', '.join(names())}.{did_you_mean(name, names())}")
  return _TABLE[name]


def get_advantage(name: str):
  """The advantage; it refuses inputs that lack what it needs."""
  entry = spec(name)

  @functools.wraps(entry.function)
  def advantage(inputs: AdvantageInputs, cfg: AdvantageConfig):
    missing = sorted(n for n in entry.needs if getattr(inputs, n) is None)
    if missing:
      raise ValueError(f"advantage {name!r} needs {missing} in its inputs")
    return entry.function(inputs, cfg)

  return advantage
