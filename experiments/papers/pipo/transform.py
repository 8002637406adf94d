"""PIPO as an update transform: a step on the previous batch before the fresh one's updates."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers.pipo.replay import Pipo, PipoState, progress, remember, replayed_batch
from jaxrl_llm import parallel, register
from jaxrl_llm.config import ConfigError, EstimatorConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.training.transforms import PhaseInputs, PhaseOutput, PhaseParts, Transform
from jaxrl_llm.types import TrainState


@dataclasses.dataclass(frozen=True)
class Replay:
  """The part on the host.

  Attributes:
    cfg: config of the transform.
    batch: the rollout as one batch for the next iteration; see `replayed_batch`. Compiled.
    step: the compiled update on it.
    parts: what the two were made with.
  """

  cfg: Pipo
  batch: Callable
  step: Callable
  parts: PhaseParts

  def begin(self, state: TrainState, carried: PipoState, inputs: PhaseInputs) -> PhaseOutput:
    """Takes the step on the previous batch, unless `progress` says to take none."""
    fresh = self.batch(inputs.rollout, inputs.rewards, inputs.keep, inputs.scores)
    following = remember(carried, fresh, inputs.reward)
    change = progress(np.asarray(carried.means), int(carried.count), inputs.reward, self.cfg)
    if change is None:
      return PhaseOutput(state, following, [], {})
    xi, weight = change
    previous = carried.batch.replace(advantages=weight * carried.batch.advantages)
    state, metrics = self.step(state, previous, inputs.packing(previous.rollout))
    return PhaseOutput(state, following, [metrics], {"pipo/xi": xi, "pipo/weight": weight})

  def carried(self, rollout, rewards, keep, scores) -> PipoState:
    """Returns shapes, dtypes and shardings of what is carried, from abstract arguments."""
    batch = jax.eval_shape(self.batch, rollout, rewards, keep, scores)
    rows, everywhere = parallel.rows(self.parts.mesh), parallel.replicated(self.parts.mesh)

    def placed(x, sharding):
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    means, count = jnp.zeros(self.cfg.history, jnp.float32), jnp.int32(0)
    return PipoState(placed(means, everywhere), placed(count, everywhere),
                     jax.tree.map(lambda x: placed(x, rows), batch))


@register.update_transform("pipo", Pipo)
class PipoTransform(Transform):
  """A further step on the previous batch, before the fresh batch's updates."""

  recomputes_anchor = off_policy = True

  def __init__(self, cfg: Pipo):
    self._cfg = cfg

  def phase(self, parts: PhaseParts) -> Replay:
    """Returns the part on the host."""
    make_batch = functools.partial(replayed_batch, cfg=parts.cfg)
    return Replay(self._cfg, jax.jit(make_batch, out_shardings=parallel.rows(parts.mesh)),
                  parts.make_step(parts.pieces), parts)

  def check(self, estimator: EstimatorConfig) -> None:
    """Refuses an estimator with statistics of the fresh batch."""
    if estimators.spec(estimator.name).batch_statistics:
      raise ConfigError(
          f"transform.name = 'pipo' with estimator.name = {estimator.name!r}, whose weights "
          "are a statistic of the fresh batch. Fix: another estimator.")
