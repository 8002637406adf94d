"""The table of estimators. Each registration declares the numbers that it reads, and their defaults."""

import dataclasses
import functools
from collections.abc import Callable

from jaxrl_llm.config import DEFAULT, ConfigError, EstimatorConfig
from jaxrl_llm.fields import did_you_mean
from jaxrl_llm.types import EstimatorOutput

Estimator = Callable[..., EstimatorOutput]
NUMBERS = tuple(f.name for f in dataclasses.fields(EstimatorConfig) if f.name != "name")


@dataclasses.dataclass(frozen=True)
class Spec:
  """One row of the table: anchor is the ratio's denominator unless the config says otherwise."""

  function: Estimator
  anchor: str
  defaults: dict
  regularized: bool = False


_TABLE: dict[str, Spec] = {}


def register(name: str, *, anchor: str = "recomputed", regularized: bool = False, replace: bool = False,
             **defaults):
  """Decorator that enters `estimator(log_probs, anchor_log_probs, advantages, mask, cfg) -> EstimatorOutput`.

  Args:
    name: key of `estimator.name`.
    anchor: `recomputed` or `behavior`.
    regularized: its gradient does not vanish with the advantage.
    replace: overwrite an entry on purpose, for notebooks that re-run a cell.
    **defaults: the EstimatorConfig numbers that the function reads; None means no bound.

  Raises:
    ValueError: the name is taken, or a number is no field of EstimatorConfig.
  """
  if name in _TABLE and not replace:
    raise ValueError(f"estimator {name!r} is registered already; another name, or replace=True in a notebook")
  foreign = set(defaults) - set(NUMBERS)
  if foreign:
    raise ValueError(f"estimator {name!r} reads {sorted(foreign)}; EstimatorConfig has {list(NUMBERS)}")
  if anchor not in ("recomputed", "behavior"):
    raise ValueError(f"estimator {name!r}: anchor = {anchor!r}; allowed are 'recomputed' and 'behavior'")

  def enter(function: Estimator) -> Estimator:
    _TABLE[name] = Spec(function, anchor, dict(defaults), regularized)
    return function

  return enter


def names() -> list[str]:
  return sorted(_TABLE)


def spec(name: str) -> Spec:
  """Raises ConfigError listing the table for a name that is not in it."""
  if name not in _TABLE:
    raise ConfigError(f"estimator.name = {name!r}: registered are {', '.join(names())}.{did_you_mean(name, names())}")
  return _TABLE[name]


def resolve(cfg: EstimatorConfig) -> EstimatorConfig:
  """`cfg` with the estimator's defaults where a number was left out.

  Raises:
    ConfigError: a number is set that the estimator does not read, or the name is unknown.
  """
  entry = spec(cfg.name)
  given = {n: getattr(cfg, n) for n in NUMBERS if getattr(cfg, n) != DEFAULT}
  unread = sorted(set(given) - set(entry.defaults))
  if unread:
    raise ConfigError(f"estimator.{unread[0]} = {given[unread[0]]!r}: {cfg.name!r} does not read it; it reads "
                      f"{', '.join(sorted(entry.defaults)) or 'no number'}. Fix: remove it.")
  given = {n: None if value == "none" else value for n, value in given.items()}
  return dataclasses.replace(cfg, **{**entry.defaults, **given})


def get_estimator(name: str) -> Estimator:
  """The estimator, taking a config whose numbers may be left out."""
  entry = spec(name)

  @functools.wraps(entry.function)
  def estimator(log_probs, anchor_log_probs, advantages, mask, cfg: EstimatorConfig) -> EstimatorOutput:
    if cfg.name != name:
      raise ConfigError(f"estimator.name = {cfg.name!r} was given to the estimator {name!r}")
    return entry.function(log_probs, anchor_log_probs, advantages, mask, resolve(cfg))

  return estimator
