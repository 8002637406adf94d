"""Update transforms: what a run does around its updates, with something carried between them.

A transform may act at three places, and carries its own pytree from each to the next time:

  phase   on the host, before the first update of a rollout batch: a further step, say
  before  in the compiled update, before the gradient: another coefficient or weight
  after   in the compiled update, on the optimizer's update: a smaller step

The transforms of `transform.name` act in its order, after the transforms that loss terms bring
(`TermEntry`).
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
from jax.sharding import Mesh

from jaxrl_llm.config import BatchConfig, StepConfig
from jaxrl_llm.fields import shown
from jaxrl_llm.models import Model
from jaxrl_llm.registry import LOSS_TERMS, TRANSFORMS
from jaxrl_llm.training.packing import Packing
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import CarryingState, Params, Rollout, TrainBatch, TrainState

# Parts of a checkpoint that no transform carries.
OF_EVERY_RUN = ("train", "cursor", "stale", "unfinished", "replay")


class StepParts(NamedTuple):
  """The arguments of an update in addition to its batch: all static but for the packing.

  Attributes:
    model, cfg, packing: as in `train_step`.
    transforms: those of `cfg`, see `active`.
  """

  model: Model
  cfg: StepConfig
  packing: Packing | None
  transforms: "Mapping[str, Transform]" = types.MappingProxyType({})


class PhaseInputs(NamedTuple):
  """A scored rollout batch, before its updates.

  Attributes:
    rollout, rewards, keep, scores: as in `batches.weighed_batch`.
    reward: mean reward of the rows, before shaping; NaN where no row was scored.
    packing: packing of the rows of a rollout.
  """

  rollout: Rollout
  rewards: jax.Array
  keep: jax.Array
  scores: Scores
  reward: float
  packing: Callable[[Rollout], Packing | None]


class PhaseOutput(NamedTuple):
  """The results of a phase.

  Attributes:
    state: to update; its `step` counts the steps that the phase took.
    carried: for the next rollout batch.
    metrics: mergeable, of each step that the phase took.
    values: metrics on the host.
  """

  state: TrainState
  carried: Any
  metrics: list[dict]
  values: dict[str, float]


class Phase(Protocol):
  """A transform's part on the host."""

  def begin(self, state: TrainState, carried, inputs: PhaseInputs) -> PhaseOutput:
    """Acts before the updates of a rollout batch; the state's arrays may be donated."""

  def carried(self, rollout, rewards, keep, scores: Scores):
    """Returns shapes, dtypes and shardings of what is carried, from abstract arguments."""


class PhaseParts(NamedTuple):
  """The arguments that make a phase.

  Attributes:
    cfg: config of the optimizer batches.
    mesh: the devices that train.
    make_step: number of micro-batches -> compiled update.
    pieces: micro-batches of a full rollout batch.
  """

  cfg: BatchConfig
  mesh: Mesh
  make_step: Callable[[int], Callable]
  pieces: int


class Transform:
  """A transform that changes nothing: the base of all others.

  Attributes:
    recomputes_anchor: whether it trains on rows when the policy has moved on, so that the anchor's
      log-probs of these rows must be kept.
    off_policy: whether it trains on rows of an earlier policy.
    passes: forward passes over the optimizer batch that `before` makes.
    columns: columns that it reads of the batch (training/columns.py).
    check: raises ConfigError for a resolved config that the transform does not work under; a
      method whose parameters name the sections that it reads, such as `estimator`. None: it works
      under all.
  """

  recomputes_anchor = off_policy = False
  passes = 0
  columns: frozenset[str] = frozenset()
  check: Callable[..., None] | None = None

  def first(self) -> Any:
    """Returns what `before` and `after` carry at first, a pytree of arrays; None: nothing."""
    return None

  def before(self, params: Params, batch: TrainBatch, carried,
             parts: StepParts) -> tuple[TrainBatch, Any, dict]:
    """Returns (batch, carried, metrics) before the gradient; `params` as the model reads them."""
    del params, parts
    return batch, carried, {}

  def after(self, updates, batch: TrainBatch, carried, parts: StepParts) -> tuple[Any, Any, dict]:
    """Returns (updates, carried, metrics); `updates` are what is added to the trained leaves."""
    del batch, parts
    return updates, carried, {}

  def phase(self, parts: PhaseParts) -> Phase | None:
    """Returns the part on the host; None: none."""
    del parts
    return None


def register(name: str, numbers: type | None = None, *, replace: bool = False, **defaults):
  """Returns a decorator that enters a transform: a class made as `transform(cfg)`, derived from
  `Transform`; `cfg` is an instance of the numbers. Arguments as in `registry.Table.register`.

  Raises:
    ValueError: the name is taken, or is the name of another part of a checkpoint.
  """
  if name in OF_EVERY_RUN:
    raise ValueError(f"transform {name!r}: checkpoints have a part of that name. Fix: another name")
  return TRANSFORMS.register(name, numbers, replace=replace, **defaults)


@register("none")
def none(cfg) -> Transform:
  """Changes nothing."""
  del cfg
  return Transform()


def active(cfg: StepConfig) -> dict[str, Transform]:
  """Returns the transforms of an update by name, in the order in which they act."""
  transforms = {}
  if cfg.loss is not None and cfg.loss.term is not None:
    numbers = LOSS_TERMS.numbers(cfg.loss.term)
    transforms = {name: entry.transform(numbers)
                  for name, entry in LOSS_TERMS.parts(cfg.loss.term.name).items()
                  if entry.transform}
  if cfg.transform is not None:
    numbers = TRANSFORMS.numbers(cfg.transform)
    for name, entry in TRANSFORMS.parts(cfg.transform.name).items():
      with TRANSFORMS.blamed(name):
        transforms[name] = entry.function(numbers)
        if not isinstance(transforms[name], Transform):
          raise TypeError(f"it is {shown(transforms[name])}; a Transform was expected")
  return transforms


def with_carried(state: TrainState, cfg: StepConfig, make: Callable[[Any], Any]) -> TrainState:
  """Returns the state with what its transforms carry, if any does.

  Args:
    make: maps what a transform carries at first to what replaces it: itself, its shapes, or its
      shardings.
  """
  first = {name: transform.first() for name, transform in active(cfg).items()}
  first = {name: make(tree) for name, tree in first.items() if tree is not None}
  if not first:
    return state
  return CarryingState(state.step, state.params, state.opt_state, state.frozen, first)


def before(state: TrainState, params: Params, batch,
           parts: StepParts) -> tuple[TrainState, Any, dict]:
  """Returns (state, batch, metrics) after the part of each transform before the gradient.

  Transforms act around updates on a TrainBatch only.
  """
  metrics: dict = {}
  for name, transform in _around(batch, parts).items():
    batch, carried, new_metrics = transform.before(params, batch, carried_by(state, name), parts)
    state, metrics = _carrying(state, name, carried), metrics | new_metrics
  return state, batch, metrics


def after(state: TrainState, updates, batch, parts: StepParts) -> tuple[TrainState, Any, dict]:
  """Returns (state, updates, metrics) after the part of each transform on the updates."""
  metrics: dict = {}
  for name, transform in _around(batch, parts).items():
    updates, carried, new_metrics = transform.after(updates, batch, carried_by(state, name), parts)
    state, metrics = _carrying(state, name, carried), metrics | new_metrics
  return state, updates, metrics


def _around(batch, parts: StepParts) -> Mapping[str, Transform]:
  return parts.transforms if isinstance(batch, TrainBatch) else {}


def carried_by(state: TrainState, name: str):
  """Returns what a transform carries; None where it carries nothing."""
  return (getattr(state, "carried", None) or {}).get(name)


def _carrying(state: TrainState, name: str, carried) -> TrainState:
  if carried is None:
    return state
  if not isinstance(state, CarryingState):
    raise ValueError(f"update transform {name!r} carries something, and the state has no place for "
                     "it. Fix: with_carried(state, cfg, of).")
  return state.replace(carried={**state.carried, name: carried})


@dataclasses.dataclass(frozen=True)
class Phases:
  """The parts on the host of a run's transforms, by name."""

  by_name: dict[str, Phase]

  def begin(self, state: TrainState, carried: dict[str, Any],
            inputs: PhaseInputs) -> tuple[TrainState, dict[str, Any], dict[str, list], dict]:
    """Returns (state, carried, metrics of the steps by name, values) after all of them."""
    next_carried, metrics, values = {}, {}, {}
    for name, phase in self.by_name.items():
      output = phase.begin(state, carried[name], inputs)
      state, next_carried[name] = output.state, output.carried
      metrics[name], values = output.metrics, values | output.values
    return state, next_carried, metrics, values


def make_phases(cfg: StepConfig, parts: PhaseParts) -> Phases:
  """Returns the parts on the host of the transforms of `cfg`."""
  phases = {name: transform.phase(parts) for name, transform in active(cfg).items()}
  return Phases({name: phase for name, phase in phases.items() if phase is not None})


__all__ = ["Phase", "PhaseInputs", "PhaseOutput", "PhaseParts", "Phases", "StepParts",
           "Transform", "active", "after", "before", "carried_by", "make_phases", "register",
           "with_carried"]
