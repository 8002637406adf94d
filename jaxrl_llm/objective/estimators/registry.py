"""The table of estimators: how one is entered, and how one is called by name."""

import dataclasses
import functools
from collections.abc import Callable

from jax import lax

from jaxrl_llm.config import ConfigError, EstimatorConfig
from jaxrl_llm.registry import ESTIMATORS, Entry, numbers_class
from jaxrl_llm.types import EstimatorOutput

Estimator = Callable[..., EstimatorOutput]


@dataclasses.dataclass(frozen=True)
class Spec(Entry):
  """An estimator.

  Attributes:
    function: `estimator(log_probs, anchor_log_probs, advantages, mask, cfg) -> EstimatorOutput`,
      `cfg` being an instance of `numbers`.
    anchor: the ratio's denominator unless the config says otherwise, `recomputed` or `behavior`.
    regularized: its gradient does not vanish with the advantage.
    prepare: statistics of the whole optimizer batch, or None where a token's loss depends on its
      own row only. `prepare(log_probs, anchor_log_probs, advantages, mask, cfg) -> weights [B, L]`
      runs without gradient; the function takes the result as `weights`.
  """

  anchor: str = "recomputed"
  regularized: bool = False
  prepare: Callable | None = None

  @property
  def batch_statistics(self) -> bool:
    """Whether a token's loss depends on the rest of the optimizer batch."""
    return self.prepare is not None


def register(name: str, numbers: type | None = None, *, anchor: str = "recomputed",
             regularized: bool = False, prepare: Callable | None = None, replace: bool = False,
             **defaults):
  """Decorator that enters an estimator, see `Spec`.

  Args:
    name: key of `estimator.name`.
    numbers: frozen dataclass of the numbers that the function reads, its fields made by
      `fields.option`.
    anchor, regularized, prepare: see `Spec`. A function with `prepare` also takes `weights`; None
      there means that its arrays are the whole batch.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
    **defaults: the numbers and their defaults, instead of `numbers`; None means no bound.

  Raises:
    ValueError: the name is taken, the anchor is unknown, or numbers are given in both ways.
  """
  if anchor not in ("recomputed", "behavior"):
    raise ValueError(f"estimator {name!r}: anchor = {anchor!r}; allowed are 'recomputed' and "
                     "'behavior'")
  if numbers is not None and defaults:
    raise ValueError(f"estimator {name!r}: {sorted(defaults)} beside {numbers.__name__}; give a "
                     "class of numbers, or defaults")
  made = numbers_class(name, defaults) if numbers is None else numbers
  if name in ESTIMATORS.entries and not replace:
    raise ValueError(f"estimator {name!r} is registered already; another name, or replace=True in "
                     "a notebook")

  def enter(function: Estimator) -> Estimator:
    ESTIMATORS.add(name, Spec(function, made, anchor, regularized, prepare and _constant(prepare)),
                   replace=replace)
    return function

  return enter


def _constant(prepare: Callable) -> Callable:
  """`prepare` for a config whose numbers may be left out, without gradient."""

  @functools.wraps(prepare)
  def prepared(log_probs, anchor_log_probs, advantages, mask, cfg: EstimatorConfig):
    constant = lax.stop_gradient(log_probs)
    return lax.stop_gradient(prepare(constant, anchor_log_probs, advantages, mask, resolve(cfg)))

  return prepared


def names() -> list[str]:
  return ESTIMATORS.names()


def spec(name: str) -> Spec:
  """The entry; raises ConfigError listing the table for a name that is not in it."""
  return ESTIMATORS[name]


def resolve(cfg: EstimatorConfig):
  """The estimator's numbers, its defaults where one was left out.

  Raises:
    ConfigError: a number that the estimator does not read, "none" or another kind of value where
      it cannot be, or an unknown name.
  """
  return ESTIMATORS.numbers(cfg)


def get_estimator(name: str) -> Estimator:
  """The estimator, taking an EstimatorConfig whose numbers may be left out.

  One with statistics of the whole batch also takes `weights`, and carries its `prepare` as an
  attribute; on every other estimator that attribute is None.
  """
  entry = spec(name)

  @functools.wraps(entry.function)
  def estimator(log_probs, anchor_log_probs, advantages, mask, cfg: EstimatorConfig,
                **weights) -> EstimatorOutput:
    if cfg.name != name:
      raise ConfigError(f"estimator.name = {cfg.name!r} was given to the estimator {name!r}")
    return entry.function(log_probs, anchor_log_probs, advantages, mask, resolve(cfg), **weights)

  estimator.prepare = entry.prepare
  return estimator
