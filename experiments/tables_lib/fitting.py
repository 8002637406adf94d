"""A few updates on one device, for experiments that need a small trained model and no run."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, ParametersConfig, StepConfig
from jaxrl_llm.models import Model, trainable
from jaxrl_llm.objective.loss import sft_loss
from jaxrl_llm.training.train_step import init_state, make_train_step
from jaxrl_llm.types import Params, SupervisedBatch, Task
from jaxrl_llm.wiring.warm_start import demonstrations, weighed


@dataclasses.dataclass(frozen=True)
class Fitted:
  """The outcome of `fit`.

  Attributes:
    params: all parameters, trained leaves merged into frozen ones.
    trained: the trained leaves, as `trainable.split` makes them.
    losses: [steps] f32, the loss of each batch before its update.
  """

  params: Params
  trained: Params
  losses: np.ndarray


class Leaves(NamedTuple):
  """The trained arrays.

  Attributes:
    parameters: the section of that name of the config.
    key: for adapters; consumed.
  """

  parameters: ParametersConfig = ParametersConfig()
  key: jax.Array | None = None


def fit(model: Model, params: Params, batches: Iterable[Any], tx: optax.GradientTransformation, *,
        loss=sft_loss, leaves: Leaves = Leaves()) -> Fitted:
  """Makes one update for each batch.

  Args:
    params: the start, which is kept.
    batches: pytrees whose leaves lead with rows, as `loss` reads them.
    loss: (params, batch, *, model, cfg) -> (scalar f32, metrics).
    leaves: the trained leaves.
  """
  parameters, key = leaves
  mesh = parallel.make_mesh(MeshConfig(), jax.devices()[:1])
  trained, frozen = trainable.split(params, parameters, key)
  state = init_state(jax.tree.map(jnp.copy, trained), tx, frozen)  # an update donates its leaves
  step = make_train_step(loss, model, tx, StepConfig(parameters=parameters), mesh)
  losses = []
  for batch in batches:
    state, metrics = step(state, batch)
    losses.append(metrics["loss/total"].total)
  merged = trainable.merge(state.params, state.frozen, parameters)
  return Fitted(merged, state.params, np.array(jax.device_get(losses), np.float32))


def supervised(task: Task, width: int, indices: Iterable[int]) -> Iterator[SupervisedBatch]:
  """Yields the demonstrations of these batches of the task, in rows of `width` columns.

  All tokens of the completions have equal weight.
  """
  weigh = jax.jit(weighed)
  for index in indices:
    yield weigh(demonstrations(task, index, width))
