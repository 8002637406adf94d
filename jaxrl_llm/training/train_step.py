"""One optimizer update: gradients summed over micro-batches, then the optimizer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxrl_llm import parallel
from jaxrl_llm.config import LossConfig, ParametersConfig, StepConfig
from jaxrl_llm.models import trainable
from jaxrl_llm.objective.loss import regularizer_weights
from jaxrl_llm.training import transforms
from jaxrl_llm.training.estimator_weights import with_estimator_weights
from jaxrl_llm.training.micro_batches import split_rows
from jaxrl_llm.training.packing import Packing, everywhere, micro_batch
from jaxrl_llm.types import Mean, TrainBatch, TrainState, merge_metrics, no_metrics


class NonFiniteError(RuntimeError):
  """The loss or the gradient is not finite; the last good checkpoint is kept."""


def init_state(params, tx: optax.GradientTransformation, frozen=None) -> TrainState:
  """Returns the state before the first update; `params` and `frozen` as `trainable.split` gives
  them.
  """
  return TrainState(jnp.int32(0), params, tx.init(params), frozen)


def gradients(params, batch, *, loss, model, cfg: StepConfig, frozen=None,
              packing: Packing | None = None):
  """Returns ((loss, metrics), gradient) of a full optimizer batch, summed over its micro-batches.

  The weights of `loss` were computed on the full batch, so it is additive over rows and the split
  changes nothing. Where rows are divided over `data`, each part of it adds up its micro-batches,
  and the sums are combined once, because along `data` a slow network joins slices of TPUs. This
  does not hold with experts: a batched `ragged_dot` has no form in which the parts share the
  weights.

  Args:
    params: the trained leaves, which the gradient is taken for.
    batch, loss, model, cfg: as in `train_step`.
    frozen: the other leaves.
    packing: the micro-batches of a TrainBatch; None: `cfg.micro_batches` of unpacked rows.
  """
  micro_batches = cfg.micro_batches if packing is None else packing.rows.shape[0]
  if _apart_over_data(model, micro_batches):
    run = functools.partial(gradients, loss=loss, cfg=cfg)
    return _gradients_of_parts(run, model, params, frozen, batch, packing)

  def trained_loss(leaves, rows):
    params = trainable.with_adapters(leaves, frozen, cfg.parameters)
    return loss(params, rows, model=model, cfg=cfg.loss)

  value_and_grad = jax.value_and_grad(trained_loss, has_aux=True)
  if packing is not None:
    return _packed_gradients(value_and_grad, params, batch, packing, model.constrain)
  if cfg.micro_batches == 1:
    return value_and_grad(params, batch)

  def accumulate(carry, micro_batch):
    (value, metrics), grads = value_and_grad(params, micro_batch)
    return jax.tree.map(jnp.add, carry, (value, grads)), metrics

  zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
  (value, grads), stacked_metrics = lax.scan(accumulate, zeros,
                                             split_rows(batch, cfg.micro_batches))
  return (value, {name: metric.reduce() for name, metric in stacked_metrics.items()}), grads


def _apart_over_data(model, micro_batches: int) -> bool:
  """Returns whether a sum over micro-batches must be added up over `data` after the loop."""
  layout = getattr(model, "constrain", None)
  return (micro_batches > 1 and isinstance(layout, parallel.Layout) and not layout.across
          and layout.mesh.shape["data"] > 1 and not model.config.num_experts)


def _gradients_of_parts(run, model, params, frozen, batch, packing: Packing | None):
  """Returns `gradients`, computed by each part of `data` separately and then added up.

  A part has its rows of the batch or, packed, its bins of each micro-batch and the full batch.
  """
  def part_gradients(layout, shared, part):
    leaves, frozen, rows, packing = shared
    rows, packing = (part, None) if packing is None else (rows, packing.replace(**part))
    return run(leaves, rows, model=dataclasses.replace(model, constrain=layout), frozen=frozen,
               packing=packing)

  shared, divided, axis = (params, frozen, None, None), batch, 0
  if packing is not None:
    shared, divided, axis = (params, frozen, batch, packing), packing.bins_by_micro_batch, 1
  (value, metrics), grads = model.constrain.over_data(part_gradients, shared, divided, axis)
  metrics = {name: metric.reduce() for name, metric in metrics.items()}
  return (jnp.sum(value), metrics), jax.tree.map(lambda x: jnp.sum(x, 0), grads)


def _packed_gradients(value_and_grad, params, batch: TrainBatch, packing: Packing, constrain):
  """Returns `gradients` over the micro-batches in use; the program does not depend on their number.
  """
  batch = everywhere(batch, constrain)

  def micro_gradients(index):
    rows, bins = micro_batch(batch, packing, index, constrain)
    (value, metrics), grads = value_and_grad(params, rows.replace(bins=bins))
    return (value, grads), metrics

  def accumulate(index, carry):
    sums, metrics = micro_gradients(index)
    return jax.tree.map(jnp.add, carry[0], sums), merge_metrics([carry[1], metrics])

  sums, metrics = jax.eval_shape(lambda: micro_gradients(0))
  zeros = jax.tree.map(jnp.zeros_like, sums)
  (value, grads), metrics = lax.fori_loop(0, packing.count, accumulate,
                                          (zeros, no_metrics(metrics)))
  return (value, metrics), grads


def train_step(state: TrainState, batch, *, loss, model, tx, cfg: StepConfig,
               packing: Packing | None = None,
               active: dict[str, transforms.Transform] | None = None) -> tuple[TrainState, dict]:
  """Makes one update.

  Args:
    state: the current state; the new one has the same frozen leaves.
    batch: pytree whose leaves lead with rows; `loss` knows its type.
    loss: (params, batch, *, model, cfg) -> (scalar, metrics), additive over rows.
    model, tx, cfg: static.
    packing: see `gradients`.
    active: the update transforms of `cfg`; None: they are looked up.

  Returns:
    (new state, mergeable metrics). `optimizer/grad_norm` is the norm before clipping.
  """
  active = transforms.active(cfg) if active is None else active
  parts = transforms.StepParts(model, cfg, packing, active)
  params = trainable.merge(state.params, state.frozen, cfg.parameters)
  batch = with_estimator_weights(params, batch, model=model, cfg=cfg, packing=packing)
  batch = _critic_first(batch, state.step, cfg.loss)
  state, batch, of_before = transforms.before(state, params, batch, parts)
  (value, metrics), grads = gradients(state.params, batch, loss=loss, model=model, cfg=cfg,
                                      frozen=state.frozen, packing=packing)
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  state, updates, of_after = transforms.after(state, updates, batch, parts)
  unit_count = jnp.float32(1)
  metrics = {**metrics, **of_before, **of_after, "loss/total": Mean(value, unit_count),
             "optimizer/grad_norm": Mean(optax.tree.norm(grads), unit_count)}
  return state.replace(step=state.step + 1, params=optax.apply_updates(state.params, updates),
                       opt_state=opt_state), metrics


def _critic_first(batch, step, cfg: LossConfig):
  """Returns the batch without weights of the estimator's loss before `critic.first` steps."""
  if not isinstance(batch, TrainBatch) or cfg.critic is None or not cfg.critic.first:
    return batch
  return batch.replace(loss_weights=jnp.where(step < cfg.critic.first, 0.0, batch.loss_weights),
                       regularizer_weights=regularizer_weights(batch))


def state_shardings(model, tx, mesh, cfg: ParametersConfig = ParametersConfig()) -> TrainState:
  """Returns the shardings of a state: optimizer moments are laid out as their parameters, counters
  are replicated.

  A factor of a moment, which lacks an axis of its parameter, is laid out by the axes that it has.
  """
  trained_layout, frozen = trainable.shardings(model, cfg, mesh)
  everywhere_layout, shapes = parallel.replicated(mesh), trainable.shapes_of(model, cfg)[0]

  def moment_sharding(moment, sharding, parameter):
    if _is_masked(moment):  # an optimizer that treats some leaves otherwise keeps nothing of them
      return moment
    if moment.shape == parameter.shape:
      return sharding
    return _factor_sharding(moment.shape, sharding, parameter.shape)

  def counter_sharding(counter):
    return everywhere_layout

  opt_state = optax.tree_map_params(tx, moment_sharding, jax.eval_shape(tx.init, shapes),
                                    trained_layout, shapes, transform_non_params=counter_sharding,
                                    is_leaf=_is_masked)
  return TrainState(everywhere_layout, trained_layout, opt_state, frozen)


def _is_masked(node) -> bool:
  return isinstance(node, optax.MaskedNode)


def _factor_sharding(factor: tuple[int, ...], sharding, parameter: tuple[int, ...]):
  """Returns the sharding of a parameter without the axis that a factor of its moment was summed
  over.

  If two axes are equal it may be either. A factor of another form, such as the placeholder of a
  moment that is not factored, is replicated.
  """
  spec = (*sharding.spec, *[None] * (len(parameter) - len(sharding.spec)))
  remaining = []
  for axis in range(len(parameter)):
    if factor == parameter[:axis] + parameter[axis + 1:]:
      remaining = [*spec[:axis], *spec[axis + 1:]]
  return jax.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*remaining))


def carrying_shardings(shardings: TrainState, cfg: StepConfig, mesh) -> TrainState:
  """Returns the shardings of a state and of what its transforms carry, which is replicated."""
  everywhere_same = parallel.replicated(mesh)

  def replicate(tree):
    return jax.tree.map(lambda _: everywhere_same, tree)

  return transforms.with_carried(shardings, cfg, replicate)


@dataclasses.dataclass(frozen=True)
class TrainStep:
  """`train_step` compiled for a mesh: (state, batch, packing) -> (state, metrics).

  Attributes:
    compiled: the jitted program, (state without frozen leaves, frozen leaves, batch, packing) ->
      the same without frozen leaves.
  """

  compiled: jax.stages.Wrapped

  def __call__(self, state: TrainState, batch,
               packing: Packing | None = None) -> tuple[TrainState, dict]:
    new, metrics = self.compiled(state.replace(frozen=None), state.frozen, batch, packing)
    return new.replace(frozen=state.frozen), metrics

  def trace(self, state: TrainState, batch, packing: Packing | None = None) -> jax.stages.Traced:
    """Returns the program for arguments of these shapes, which may be abstract; it can be lowered.
    """
    return self.compiled.trace(state.replace(frozen=None), state.frozen, batch, packing)


def make_train_step(loss, model, tx, cfg: StepConfig, mesh) -> TrainStep:
  """Returns `train_step` compiled for a mesh.

  The state is sharded, and batch rows are spread over the data axes. Step, trained leaves and
  optimizer state are donated. Frozen leaves are not, so that other states and the reference policy
  may share them.
  """
  model = dataclasses.replace(model, constrain=parallel.Layout(mesh))
  state_layout = carrying_shardings(state_shardings(model, tx, mesh, cfg.parameters), cfg, mesh)
  layout = state_layout.replace(frozen=None)
  active = transforms.active(cfg)  # before anything is traced, so that a plugin fails by its name

  def update(state, frozen, batch, packing):
    new, metrics = train_step(state.replace(frozen=frozen), batch, loss=loss, model=model, tx=tx,
                              cfg=cfg, packing=packing, active=active)
    return new.replace(frozen=None), metrics

  update.__name__ = "train_step"  # how profiles and compilation logs call it
  return TrainStep(jax.jit(update, donate_argnums=0,
                           in_shardings=(layout, state_layout.frozen, parallel.rows(mesh),
                                         parallel.replicated(mesh)),
                           out_shardings=(layout, parallel.replicated(mesh))))
