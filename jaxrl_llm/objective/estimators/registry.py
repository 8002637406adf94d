"""The table of estimators: entering one, and calling it by name."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.config import ConfigError, EstimatorConfig
from jaxrl_llm.registry import ESTIMATORS, Entry
from jaxrl_llm.types import EstimatorOutput

Estimator = Callable[..., EstimatorOutput]
# Constants that an estimator may read besides the four arrays, given by keyword.
COLUMNS = ("group_id", "row_id", "rewards", "turn_id", "entropy", "recomputed_log_probs",
           "ref_log_probs")


@dataclasses.dataclass(frozen=True)
class EstimatorEntry(Entry):
  """An estimator in the table.

  Attributes:
    function: `estimator(log_probs, anchor_log_probs, advantages, mask, cfg) -> EstimatorOutput`,
      `cfg` being an instance of `numbers`.
    anchor: the ratio's denominator unless the config says otherwise, `recomputed` or `behavior`.
    regularized: whether its gradient stays nonzero where the advantage is 0.
    prepare: `prepare(log_probs, anchor_log_probs, advantages, mask, cfg) -> weights [B, L]`, a
      statistic of the full optimizer batch, computed without gradient; the function gets it as
      `weights`. None: a token's loss depends on its own row only.
    columns: names of COLUMNS that the function, and `prepare`, get by keyword: group_id, row_id
      and rewards [B], turn_id, entropy, recomputed_log_probs and ref_log_probs [B, L].
    options: columns that are read only if a number has a certain value, as
      (((number, value), names), ...).
    on_policy: `on_policy(log_probs, advantages, mask, cfg, weights) -> c [B, L]`, the coefficient
      where the policy is the anchor, for an estimator whose coefficient is not the advantage there.
      None: it is the advantage.
  """

  anchor: str = "recomputed"
  regularized: bool = False
  prepare: Callable | None = None
  columns: frozenset[str] = frozenset()
  options: tuple = ()
  on_policy: Callable | None = None

  def required(self, numbers) -> frozenset[str]:
    """Returns the names of the columns that the estimator reads with these hyperparameters."""
    return self.columns.union(*(names for (number, value), names in self.options
                                if getattr(numbers, number) == value))

  @property
  def batch_statistics(self) -> bool:
    """Returns whether a token's loss depends on other rows of the optimizer batch."""
    return self.prepare is not None

  @property
  def of_groups(self) -> bool:
    """Returns whether it compares the rows of a group, so that it says nothing of a single row."""
    return "group_id" in self.columns


def register(name: str, numbers: type | None = None, *, anchor: str = "recomputed",
             regularized: bool = False, prepare: Callable | None = None,
             columns: Collection[str] | Mapping[tuple[str, str], Collection[str]] = (),
             on_policy: Callable | None = None, replace: bool = False, **defaults):
  """Returns a decorator that enters an estimator in the table; see `EstimatorEntry`.

  Args:
    name: key of `estimator.name`.
    numbers: frozen dataclass of the hyperparameters that the function reads; `fields.option` makes
      its fields.
    anchor, regularized, prepare, on_policy: see `EstimatorEntry`. A function with `prepare` also
      takes `weights`.
    columns: names of COLUMNS; or {("span", "segment"): {"turn_id"}}: turn_id is read if the number
      `span` is "segment".
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
    **defaults: the hyperparameters and their defaults, instead of `numbers`; None means no bound.

  Raises:
    ValueError: the name is taken, the anchor or a column is unknown, or numbers are given in both
      ways.
  """
  if anchor not in ("recomputed", "behavior"):
    raise ValueError(f"estimator {name!r}: anchor = {anchor!r}; allowed are 'recomputed' and "
                     "'behavior'")

  options = dict(columns) if isinstance(columns, Mapping) else {}
  always: frozenset[str] = frozenset(() if isinstance(columns, Mapping) else columns)
  unknown = sorted(always.union(*options.values()) - set(COLUMNS))
  if unknown:
    raise ValueError(f"estimator {name!r} reads the columns {unknown}; allowed are {list(COLUMNS)}")
  optional = tuple((key, frozenset(value)) for key, value in options.items())

  def make(function: Estimator, numbers: type) -> EstimatorEntry:
    return EstimatorEntry(function, numbers, anchor, regularized, prepare and _constant(prepare),
                          always, optional, on_policy)

  return ESTIMATORS.register(name, numbers, replace=replace, make=make, **defaults)


def _constant(prepare: Callable) -> Callable:
  """Returns `prepare` without gradient, for a config whose numbers may be left out."""

  @functools.wraps(prepare)
  def prepared(log_probs, anchor_log_probs, advantages, mask, cfg: EstimatorConfig, **columns):
    constant = lax.stop_gradient(log_probs)
    return lax.stop_gradient(prepare(constant, anchor_log_probs, advantages, mask, resolve(cfg),
                                     **columns))

  return prepared


def names() -> list[str]:
  """Returns the names of all estimators, sorted."""
  return ESTIMATORS.names()


def spec(name: str) -> EstimatorEntry:
  """Returns the entry of a name; raises ConfigError with all names if it is not registered."""
  return ESTIMATORS[name]


def resolve(cfg: EstimatorConfig):
  """Returns the estimator's numbers, with its defaults for the numbers that were left out.

  Raises:
    ConfigError: an unknown name, a number that the estimator does not read, or a value of a kind
      that the number cannot have, such as "none".
  """
  return ESTIMATORS.numbers(cfg)


def required(cfg: EstimatorConfig) -> frozenset[str]:
  """Returns the names of the columns that the estimator of `cfg` reads."""
  return spec(cfg.name).required(resolve(cfg))


def stand_ins(cfg: EstimatorConfig, anchor_log_probs: Float[Array, "B L"],
              mask: Bool[Array, "B L"]) -> dict[str, Array]:
  """Returns the columns that the estimator of `cfg` reads, for rows of which nothing is known.

  Each row is a separate group, numbered by its place, with reward 0 and one turn. Every token has
  entropy 0, and the recomputed policy and the reference are the anchor.
  """
  rows, zeros = jnp.arange(mask.shape[0]), jnp.zeros_like(anchor_log_probs)
  columns = {"group_id": rows, "row_id": rows, "rewards": zeros[:, 0],
             "turn_id": mask.astype(jnp.int32), "entropy": zeros,
             "recomputed_log_probs": anchor_log_probs, "ref_log_probs": anchor_log_probs}
  return {name: columns[name] for name in sorted(required(cfg))}


def get_estimator(name: str) -> Estimator:
  """Returns the estimator for an EstimatorConfig whose numbers may be left out.

  It is `estimator(log_probs, anchor_log_probs, advantages, mask, cfg, **columns) ->
  EstimatorOutput`. Its attribute `prepare` is the entry's; where that is not None, the estimator
  also takes `weights`; without them its arrays are the full batch. A column that it reads and does
  not get raises ValueError.
  """
  entry = spec(name)

  @functools.wraps(entry.function)
  def estimator(log_probs, anchor_log_probs, advantages, mask, cfg: EstimatorConfig,
                **columns) -> EstimatorOutput:
    if cfg.name != name:
      raise ConfigError(f"estimator.name = {cfg.name!r} was given to the estimator {name!r}")
    missing = sorted(required(cfg) - {key for key, value in columns.items() if value is not None})
    if missing:
      raise ValueError(f"estimator {name!r} reads {missing} with these numbers; it got "
                       f"{sorted(columns)}. Fix: give them by keyword.")
    arrays = (log_probs, anchor_log_probs, advantages, mask)
    if entry.prepare is not None and "weights" not in columns:
      columns["weights"] = entry.prepare(*arrays, cfg, **columns)
    return entry.function(*arrays, resolve(cfg), **columns)

  vars(estimator)["prepare"] = entry.prepare
  return estimator
