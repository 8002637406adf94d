"""The state between two iterations, and its shape in a checkpoint."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.models import trainable
from jaxrl_llm.store.checkpoints import abstract
from jaxrl_llm.training.train_step import carrying_shardings, init_state, state_shardings
from jaxrl_llm.training.transforms import OF_EVERY_RUN, with_carried
from jaxrl_llm.types import TrainState
from jaxrl_llm.wiring.learner import Learner, Start

if TYPE_CHECKING:
  from jaxrl_llm.rollouts.in_flight import Unfinished
  from jaxrl_llm.runs.replay import Groups


@dataclasses.dataclass(frozen=True)
class RunState:
  """Everything that the next iteration depends on.

  Attributes:
    state: trained parameters and optimizer.
    cursor: index of the next task batch, from which row ids follow.
    transform_state: state of update transforms between rollout batches, on the host, by name.
    stale: `updates.staleness` copies of step and trained parameters before earlier updates, the
      oldest first.
    unfinished: with `updates.in_flight`, this process's completions that continue in the next one.
    groups: with `updates.replay`, those of that many iterations.
  """

  state: TrainState
  cursor: int
  transform_state: dict[str, Any]
  stale: tuple[TrainState, ...] = ()
  unfinished: "Unfinished | None" = None
  groups: "Groups | None" = None

  def sampling_state(self) -> TrainState:
    """Returns the step and parameters of the policy that samples in the next iteration."""
    return self.stale[0].replace(frozen=self.state.frozen) if self.stale else self.state

  def with_new_snapshot(self) -> "RunState":
    """Adds the current parameters to the stale copies and drops the oldest.

    Call it before the updates, which donate the current parameters.
    """
    stale = (*self.stale[1:], _snapshot(self.state)) if self.stale else ()
    return dataclasses.replace(self, stale=stale)

  def saved(self, mesh: jax.sharding.Mesh | None = None) -> dict:
    """Returns the tree of a checkpoint, on a mesh, without the start's frozen parameters."""
    tree = {"train": self.state.replace(frozen=None), "cursor": np.asarray(self.cursor, np.int32)}
    if self.stale:
      tree["stale"] = list(self.stale)
    if self.unfinished is not None:
      from jaxrl_llm.runs import in_flight
      tree["unfinished"] = in_flight.saved(self.unfinished, mesh)
    if self.groups is not None:
      tree["replay"] = self.groups._asdict()
    return tree | self.transform_state


def first_state(learner: Learner, start: Start) -> RunState:
  """Returns the state before the first iteration.

  Trained leaves are copied, so that `start` survives the updates; frozen ones are shared.
  """
  def init(trained):
    state = init_state(jax.tree.map(jnp.copy, trained), learner.optimizer)
    return with_carried(state, learner.cfg, lambda tree: tree)

  state = jax.jit(init, out_shardings=_layout(learner))(start.params)
  stale = tuple(_snapshot(state) for _ in range(learner.updates.staleness))
  unfinished, groups, carried = _of_some_runs(learner)
  # From 1. In flight, the first batch replaces what an iteration before would have left.
  cursor = 1 if unfinished is None else 2
  return RunState(state.replace(frozen=start.frozen), cursor, _zeros(carried), stale, unfinished,
                  groups)


def restored_state(tree: dict, start: Start) -> RunState:
  """Returns the state that `RunState.saved` wrote, with the frozen parameters of the start."""
  unfinished = groups = None
  if "replay" in tree:
    from jaxrl_llm.runs.replay import Groups
    groups = Groups(**tree["replay"])
  if "unfinished" in tree:
    from jaxrl_llm.rollouts.in_flight import Unfinished
    unfinished = Unfinished(**parallel.local_rows(tree["unfinished"]))
  return RunState(tree["train"].replace(frozen=start.frozen), int(tree["cursor"]),
                  {name: subtree for name, subtree in tree.items() if name not in OF_EVERY_RUN},
                  tuple(tree.get("stale", ())), unfinished, groups)


def abstract_saved(learner: Learner) -> dict:
  """Returns shapes, dtypes and shardings of `RunState.saved`."""
  trained, _ = trainable.shapes_of(learner.model, learner.cfg.parameters)
  shapes = with_carried(
      jax.eval_shape(functools.partial(init_state, tx=learner.optimizer), trained), learner.cfg,
      functools.partial(jax.eval_shape, lambda tree: tree))
  train = abstract(shapes, _layout(learner))
  tree = {"train": train, "cursor": np.asarray(0, np.int32)}
  if learner.updates.staleness:
    tree["stale"] = [TrainState(train.step, train.params, None)] * learner.updates.staleness
  unfinished, groups, carried = _of_some_runs(learner)
  if unfinished is not None:
    from jaxrl_llm.runs import in_flight
    tree["unfinished"] = in_flight.shapes(unfinished, learner.mesh)
  if groups is not None:
    tree["replay"] = groups._asdict()
  return tree | carried


def _of_some_runs(learner: Learner) -> "tuple[Unfinished | None, Groups | None, dict[str, Any]]":
  """Returns `unfinished`, `groups`, and shapes of the state of transforms, of a run's start."""
  unfinished = groups = None
  carried: dict[str, Any] = {}
  if learner.updates.in_flight:
    from jaxrl_llm.runs.in_flight import first_rows
    unfinished = first_rows(learner)
  if learner.updates.replay:
    from jaxrl_llm.runs.replay import no_groups
    groups = no_groups(learner)
  if learner.phases.by_name:
    from jaxrl_llm.runs.carried import abstract_carried
    carried = abstract_carried(learner)
  return unfinished, groups, carried


def _layout(learner: Learner) -> TrainState:
  """Returns shardings of a state without its frozen leaves."""
  shardings = state_shardings(learner.model, learner.optimizer, learner.mesh,
                              learner.cfg.parameters)
  return carrying_shardings(shardings.replace(frozen=None), learner.cfg, learner.mesh)


def _snapshot(state: TrainState) -> TrainState:
  """Copies step and trained parameters, because an update donates the state's arrays."""
  return jax.tree.map(jnp.copy, TrainState(state.step, state.params, None))


def _zeros(shapes):
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), shapes)
