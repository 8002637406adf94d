"""The learner: the model, its optimizer and the compiled functions of an update."""

import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax
import optax
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, RolloutConfig, StepConfig, UpdateConfig
from jaxrl_llm.models import Model, row_attention, trainable
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.training import batches
from jaxrl_llm.training.columns import BASE
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.packing import Packer, Packing, make_packer
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.train_step import make_train_step
from jaxrl_llm.training.transforms import PhaseParts, Phases, make_phases
from jaxrl_llm.types import Params, Rollout, TrainBatch, TrainState
from jaxrl_llm.wiring.scoring import Scoring, make_scoring

if TYPE_CHECKING:  # imported for runs that have one
  from jaxrl_llm.training.teachers import Teachers


class Start(NamedTuple):
  """Parameters that a run starts from: the trained and the frozen tree of `trainable.split`."""

  params: Params
  frozen: Params | None


class MergeFn(Protocol):
  """The parameters that the model reads: trained and frozen leaves together, adapters merged."""

  def __call__(self, state: TrainState | Start) -> Params: ...


class BatchesFn(Protocol):
  """Optimizer batches of a scored rollout; see `batches.optimizer_batches`."""

  def __call__(self, rollout: Rollout, rewards: jax.Array, keep: jax.Array,
               scores: Scores) -> tuple[list[TrainBatch], dict]: ...


class StepFn(Protocol):
  """One optimizer update; trained leaves and optimizer state are donated.

  `trace` gives its program for arguments of these shapes, which may be abstract.
  """

  def __call__(self, state: TrainState, batch: TrainBatch,
               packing: Packing | None = None) -> tuple[TrainState, dict]: ...

  def trace(self, state: TrainState, batch: TrainBatch,
            packing: Packing | None = None) -> jax.stages.Traced: ...


@dataclasses.dataclass(frozen=True)
class Learner:
  """Model, optimizer and compiled functions of training. Programs are compiled on first use.

  Attributes:
    model, optimizer: static.
    cfg: of an update.
    updates: how a rollout batch becomes optimizer batches.
    rollout: sizes of the rollout batches.
    mesh: the devices that train.
    scoring: the passes over a rollout.
    merged: the parameters that the model reads.
    base: the same without adapters; None where nothing reads them.
    batches: optimizer batches of a scored rollout.
    step: one update.
    phases: what update transforms do on the host before the updates of a rollout batch.
    packer: of the rows of a batch; None where they are padded.
  """

  model: Model
  optimizer: optax.GradientTransformation
  cfg: StepConfig
  updates: UpdateConfig
  rollout: RolloutConfig
  mesh: Mesh
  scoring: Scoring
  merged: MergeFn
  batches: BatchesFn
  step: StepFn
  phases: Phases
  packer: Packer | None = None
  base: MergeFn | None = None

  def packing(self, rollout: Rollout) -> Packing | None:
    """Returns where the passes and updates find the rollout's rows; waits for their lengths."""
    return None if self.packer is None else self.packer.pack(rollout)


def make_learner(cfg: Config, model: Model, mesh: Mesh, stop_ids: tuple[int, ...],
                 teachers: "Teachers | None" = None) -> Learner:
  """Returns the learner of a resolved config; `stop_ids` are the task's, `teachers` as in
  `make_scoring`.

  Raises:
    ConfigError: `model.attention` cannot serve packed rows.
  """
  optimizer = make_optimizer(cfg.optimizer)
  full_step = dataclasses.replace(cfg.step, loss=dataclasses.replace(cfg.loss, stop_ids=stop_ids))
  rows, updates = parallel.rows(mesh), cfg.updates
  scoring = make_scoring(cfg, model, mesh, stop_ids, teachers)

  def make_step(micro_batches: int) -> StepFn:
    step_cfg = dataclasses.replace(full_step, micro_batches=micro_batches)
    return make_train_step(policy_loss, model, optimizer, step_cfg, mesh)

  pieces = updates.optimizer_batches * updates.micro_batches
  return Learner(
      model=model,
      optimizer=optimizer,
      cfg=full_step,
      updates=updates,
      rollout=cfg.rollout,
      mesh=mesh,
      scoring=scoring,
      merged=trainable.make_merge(model, cfg.parameters, mesh),
      batches=jax.jit(functools.partial(batches.optimizer_batches, cfg=cfg.batch),
                      out_shardings=(rows, parallel.replicated(mesh))),
      step=make_step(updates.micro_batches),
      phases=make_phases(cfg.step, PhaseParts(cfg.batch, mesh, make_step, pieces)),
      packer=_checked(make_packer(updates, cfg.bin_tokens, cfg.rollout, mesh), model, mesh),
      base=trainable.make_merge(model, cfg.parameters, mesh, adapters=False)
      if scoring.reads(BASE) else None,
  )


def _checked(packer: Packer | None, model: Model, mesh: Mesh) -> Packer | None:
  """Returns the packer, if the model's attention can see what its bins need; raises ConfigError."""
  if packer is not None:
    form = row_attention.SHARED if packer.shared_prompts else row_attention.PACKED
    row_attention.choose(model.config, packer.bins.capacity,
                         row_attention.platform_of(parallel.Layout(mesh)), form)
  return packer
