"""The table of estimators: entering one, and calling it by name."""

import dataclasses
import functools
from collections.abc import Callable

from jax import lax

from jaxrl_llm.config import ConfigError, EstimatorConfig
from jaxrl_llm.registry import ESTIMATORS, Entry
from jaxrl_llm.types import EstimatorOutput

Estimator = Callable[..., EstimatorOutput]


@dataclasses.dataclass(frozen=True)
class EstimatorEntry(Entry):
  """An estimator in the table.

  Attributes:
    function: `estimator(log_probs, anchor_log_probs, advantages, mask, cfg) -> EstimatorOutput`,
      `cfg` being an instance of `numbers`.
    anchor: the ratio's denominator unless the config says otherwise, `recomputed` or `behavior`.
    regularized: whether its gradient stays nonzero where the advantage is 0.
    prepare: `prepare(log_probs, anchor_log_probs, advantages, mask, cfg) -> weights [B, L]`, a
      statistic of the whole optimizer batch, computed without gradient; the function gets it as
      `weights`. None: a token's loss depends on its own row only.
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
  """Returns a decorator that enters an estimator in the table; see `EstimatorEntry`.

  Args:
    name: key of `estimator.name`.
    numbers: frozen dataclass of the numbers that the function reads; `fields.option` makes its
      fields.
    anchor, regularized, prepare: see `EstimatorEntry`. A function with `prepare` also takes
      `weights`; None there means that its arrays are the whole batch.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
    **defaults: the numbers and their defaults, instead of `numbers`; None means no bound.

  Raises:
    ValueError: the name is taken, the anchor is unknown, or numbers are given in both ways.
  """
  if anchor not in ("recomputed", "behavior"):
    raise ValueError(f"estimator {name!r}: anchor = {anchor!r}; allowed are 'recomputed' and "
                     "'behavior'")

  def make(function: Estimator, own: type) -> EstimatorEntry:
    return EstimatorEntry(function, own, anchor, regularized, prepare and _constant(prepare))

  return ESTIMATORS.register(name, numbers, replace=replace, make=make, **defaults)


def _constant(prepare: Callable) -> Callable:
  """Returns `prepare` without gradient, for a config whose numbers may be left out."""

  @functools.wraps(prepare)
  def prepared(log_probs, anchor_log_probs, advantages, mask, cfg: EstimatorConfig):
    constant = lax.stop_gradient(log_probs)
    return lax.stop_gradient(prepare(constant, anchor_log_probs, advantages, mask, resolve(cfg)))

  return prepared


def names() -> list[str]:
  """Returns the names of all estimators, sorted."""
  return ESTIMATORS.names()


def spec(name: str) -> EstimatorEntry:
  """Returns the entry of a name; raises ConfigError with all names if it is not registered."""
  return ESTIMATORS[name]


def resolve(cfg: EstimatorConfig):
  """Returns the estimator's numbers, with its defaults for those that were left out.

  Raises:
    ConfigError: an unknown name, a number that the estimator does not read, or a value of a kind
      that the number cannot have, such as "none".
  """
  return ESTIMATORS.numbers(cfg)


def get_estimator(name: str) -> Estimator:
  """Returns the estimator for an EstimatorConfig whose numbers may be left out.

  It is `estimator(log_probs, anchor_log_probs, advantages, mask, cfg) -> EstimatorOutput`. Its
  attribute `prepare` is the entry's; where that is not None, the estimator also takes `weights`.
  """
  entry = spec(name)

  @functools.wraps(entry.function)
  def estimator(log_probs, anchor_log_probs, advantages, mask, cfg: EstimatorConfig,
                **weights) -> EstimatorOutput:
    if cfg.name != name:
      raise ConfigError(f"estimator.name = {cfg.name!r} was given to the estimator {name!r}")
    return entry.function(log_probs, anchor_log_probs, advantages, mask, resolve(cfg), **weights)

  vars(estimator)["prepare"] = entry.prepare
  return estimator
