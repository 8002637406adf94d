"""The table of advantages: entering one, what it needs, and calling it by name."""

import dataclasses
import functools
from collections.abc import Callable, Collection

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.registry import ADVANTAGES, COLUMNS, Entry
from jaxrl_llm.types import AdvantageInputs

OPTIONAL = tuple(f.name for f in dataclasses.fields(AdvantageInputs)
                 if f.default is None and f.name != "columns")
# Columns of the package that an advantage may name before training/columns.py is imported.
PASSES = ("recomputed_log_probs", "row_gradient", "teacher_log_probs")


@dataclasses.dataclass(frozen=True)
class AdvantageEntry(Entry):
  """An advantage in the table.

  Attributes:
    function: `advantage(inputs, cfg) -> [B, L]`, without gradient; `cfg` is an instance of
      `numbers`.
    needs: optional AdvantageInputs fields and columns (training/columns.py) that it reads. With
      `values` among them, a critic is trained with the policy.
    group: whether it compares the rows of a group, so that G must exceed 1.
    options: fields that it reads only if a number has a certain value, as
      (((number, value), fields), ...).
    metrics: `metrics(inputs, cfg) -> {name: Mean, Histogram or Extreme}`, logged once for each
      rollout; None: no metrics.
  """

  needs: frozenset[str] = frozenset()
  group: bool = True
  options: tuple = ()
  metrics: Callable | None = None

  def required(self, numbers) -> frozenset[str]:
    """Returns the optional AdvantageInputs fields that the advantage reads with these
    hyperparameters."""
    return self.needs.union(*(fields for (number, value), fields in self.options
                              if getattr(numbers, number) == value))


def register(name: str, numbers: type | None = None, *, needs: Collection[str] = (),
             group: bool = True, options: dict[tuple[str, str], set[str]] | None = None,
             metrics: Callable | None = None, replace: bool = False, **defaults):
  """Returns a decorator that enters an advantage in the table; see `AdvantageEntry`.

  Args:
    name: key of `advantage.name`.
    numbers: frozen dataclass of the hyperparameters that the function reads; `fields.option` makes
      its fields.
    needs, group, metrics: see `AdvantageEntry`.
    options: {("granularity", "turn"): {"turn_id"}}: turn_id is read if granularity is turn.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
    **defaults: the hyperparameters and their defaults, instead of `numbers`.

  Raises:
    ValueError: the name is taken, `needs` or `options` names neither an optional field of
      AdvantageInputs nor a column that is registered by then, or numbers are given in both ways.
  """
  options = options or {}
  unknown = sorted(set(needs).union(*options.values()) - set(OPTIONAL) - set(PASSES)
                   - set(COLUMNS.entries))
  if unknown:
    raise ValueError(f"advantage {name!r} needs {unknown}; allowed are {list(OPTIONAL)}")

  def make(function, numbers: type) -> AdvantageEntry:
    return AdvantageEntry(function, numbers, frozenset(needs), group, tuple(options.items()),
                          metrics)

  return ADVANTAGES.register(name, numbers, replace=replace, make=make, **defaults)


def names() -> list[str]:
  """Returns the names of all advantages, sorted."""
  return ADVANTAGES.names()


def spec(name: str) -> AdvantageEntry:
  """Returns the entry of a name; raises ConfigError with all names if it is not registered."""
  return ADVANTAGES[name]


def needs(cfg: AdvantageConfig) -> frozenset[str]:
  """Returns the optional AdvantageInputs fields that the trainer must compute under `cfg`."""
  return spec(cfg.name).required(ADVANTAGES.numbers(cfg, strict=False))


def metrics(inputs: AdvantageInputs, cfg: AdvantageConfig) -> dict:
  """Returns the advantage's own metrics, each a Mean, Histogram or Extreme."""
  entry = spec(cfg.name)
  if entry.metrics is None:
    return {}
  return entry.metrics(inputs, ADVANTAGES.numbers(cfg, strict=False))


def get_advantage(name: str):
  """Returns the advantage as `advantage(inputs, cfg: AdvantageConfig) -> [B, L]`.

  Numbers that the config leaves out have their defaults. Numbers that only other advantages read
  are ignored here, so that one config can serve several in a comparison; a run refuses them. The
  function raises ValueError for inputs that lack a field which it needs.
  """
  entry = spec(name)

  @functools.wraps(entry.function)
  def advantage(inputs: AdvantageInputs, cfg: AdvantageConfig):
    numbers = ADVANTAGES.numbers(dataclasses.replace(cfg, name=name), strict=False)
    present = vars(inputs) | (inputs.columns or {})
    missing = sorted(n for n in entry.required(numbers) if present.get(n) is None)
    if missing:
      because = ", ".join(f"advantage.{number} = {value!r} reads {', '.join(sorted(fields))}"
                          for (number, value), fields in entry.options
                          if getattr(numbers, number) == value)
      raise ValueError(f"advantage {name!r} needs {missing} in its inputs"
                       f"{because and ': ' + because}")
    return entry.function(inputs, numbers)

  return advantage
