"""The table of estimators. Each registration declares the numbers that it reads, and their
defaults.
"""

import dataclasses
import functools
from collections.abc import Callable

from jax import lax

from jaxrl_llm.config import DEFAULT, ConfigError, EstimatorConfig
from jaxrl_llm.fields import did_you_mean
from jaxrl_llm.types import EstimatorOutput

Estimator = Callable[..., EstimatorOutput]
NUMBERS = tuple(f.name for f in dataclasses.fields(EstimatorConfig) if f.name != "name")
CHOICES = {
    f.name: f.metadata["choices"]
    for f in dataclasses.fields(EstimatorConfig)
    if f.metadata["choices"]
}
# Those of NUMBERS that may be None: no bound.
BOUNDS = frozenset({
    "clip_low", "clip_high", "dual_clip", "log_low", "log_high", "log_dual", "cap", "tau",
    "delta_low", "delta_high", "ratio_cap"
})


@dataclasses.dataclass(frozen=True)
class Spec:
  """One row of the table: anchor is the ratio's denominator unless the config says otherwise.

  With batch_statistics, `prepare(log_probs, anchor_log_probs, advantages, mask, cfg) -> weights [B,
  L]` computes, on the whole optimizer batch and without gradient, what the function takes as
  `weights`; otherwise it is None.
  """

  function: Estimator
  anchor: str
  defaults: dict
  regularized: bool = False
  batch_statistics: bool = False
  prepare: Callable | None = None


_TABLE: dict[str, Spec] = {}


def register(name: str, *, anchor: str = "recomputed", regularized: bool = False,
             batch_statistics: bool = False, prepare: Callable | None = None, replace: bool = False,
             **defaults):
  """Decorator that enters `estimator(log_probs, anchor_log_probs, advantages, mask, cfg) ->
  EstimatorOutput`.

  Args:
    name: key of `estimator.name`.
    anchor: `recomputed` or `behavior`.
    regularized: its gradient does not vanish with the advantage.
    batch_statistics: a token's loss depends on the rest of the optimizer batch; the function then
      takes `weights`, and None there means that its arrays are the whole batch.
    prepare: with batch_statistics, makes those weights; arguments as the estimator's.
    replace: overwrite an entry on purpose, for notebooks that re-run a cell.
    **defaults: the EstimatorConfig numbers that the function reads; None means no bound.

  Raises:
    ValueError: the name is taken, a number is no field of EstimatorConfig, or one of
    batch_statistics and prepare
      comes without the other.
  """
  if name in _TABLE and not replace:
    raise ValueError(
        f"estimator {name!r} is registered already; another name, or replace=True in a notebook")
  foreign = set(defaults) - set(NUMBERS)
  if foreign:
    raise ValueError(
        f"estimator {name!r} reads {sorted(foreign)}; EstimatorConfig has {list(NUMBERS)}")
  if anchor not in ("recomputed", "behavior"):
    raise ValueError(
        f"estimator {name!r}: anchor = {anchor!r}; allowed are 'recomputed' and 'behavior'")

  if batch_statistics != (prepare is not None):
    raise ValueError(
        f"estimator {name!r}: batch_statistics = {batch_statistics} and prepare = {prepare}; give "
        "both or "
        "neither")

  def enter(function: Estimator) -> Estimator:
    _TABLE[name] = Spec(function, anchor, dict(defaults), regularized, batch_statistics,
                        _resolving(prepare) if batch_statistics else None)
    return function

  return enter


def _resolving(prepare: Callable) -> Callable:
  """`prepare` on a config whose numbers may be left out, as a constant."""

  @functools.wraps(prepare)
  def prepared(log_probs, anchor_log_probs, advantages, mask, cfg: EstimatorConfig):
    return lax.stop_gradient(
        prepare(lax.stop_gradient(log_probs), anchor_log_probs, advantages, mask, resolve(cfg)))

  return prepared


def names() -> list[str]:
  return sorted(_TABLE)


def spec(name: str) -> Spec:
  """Raises ConfigError listing the table for a name that is not in it."""
  if name not in _TABLE:
    raise ConfigError(
        f"estimator.name = {name!r}: registered are "
        f"{', '.join(names())}.{did_you_mean(name, names())}"
    )
  return _TABLE[name]


def resolve(cfg: EstimatorConfig) -> EstimatorConfig:
  """`cfg` with the estimator's defaults where a number was left out.

  Raises:
    ConfigError: a number is set that the estimator does not read, "none" or another kind of value
    where it cannot be,
      or the name is unknown.
  """
  entry = spec(cfg.name)
  given = {n: getattr(cfg, n) for n in NUMBERS if getattr(cfg, n) != DEFAULT}
  unread = sorted(set(given) - set(entry.defaults))
  if unread:
    raise ConfigError(
        f"estimator.{unread[0]} = {given[unread[0]]!r}: {cfg.name!r} does not read it; it reads "
        f"{', '.join(sorted(entry.defaults)) or 'no number'}. Fix: remove it.")
  given = {n: None if value == "none" else value for n, value in given.items()}
  for n, value in given.items():
    if value is None and n not in BOUNDS and entry.defaults[n] is not None:
      raise ConfigError(
          f"estimator.{n} = 'none': {cfg.name!r} needs a value; it is no bound that could be left "
          "open. "
          f"Fix: leave it out (default {entry.defaults[n]}).")
    if isinstance(entry.defaults[n], bool) and not isinstance(value, bool):
      raise ConfigError(f"estimator.{n} = {value!r}: allowed are True and False.")
    if n in CHOICES and value not in CHOICES[n]:
      raise ConfigError(f"estimator.{n} = {value!r}: allowed are {', '.join(CHOICES[n])}.")
  return dataclasses.replace(cfg, **{**entry.defaults, **given})


def get_estimator(name: str) -> Estimator:
  """The estimator, taking a config whose numbers may be left out.

  One with batch statistics also takes `weights` (default None: its arrays are the whole optimizer
  batch), and carries its `prepare` as an attribute; on every other estimator that attribute is
  None.
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
