"""One optimizer update: gradients summed over micro-batches, then the optimizer."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxrl_llm import parallel
from jaxrl_llm.config import OptimizerConfig, ParametersConfig, StepConfig, WarmStartConfig
from jaxrl_llm.models import trainable
from jaxrl_llm.training.estimator_weights import needs_weights, with_estimator_weights
from jaxrl_llm.training.micro_batches import split_rows
from jaxrl_llm.types import Mean, TrainState


class NonFiniteError(RuntimeError):
  """The loss or the gradient is not finite; the last good checkpoint stands."""


def make_optimizer(
    cfg: OptimizerConfig,
    learning_rate: float | optax.Schedule | None = None) -> optax.GradientTransformation:
  """AdamW after a global-norm clip; `learning_rate` (number or schedule) replaces the config's."""
  if learning_rate is None:
    learning_rate = cfg.learning_rate
    if cfg.warmup_steps:
      learning_rate = optax.linear_schedule(0.0, cfg.learning_rate, cfg.warmup_steps)
  return optax.chain(
      optax.clip_by_global_norm(cfg.max_grad_norm),
      optax.adamw(learning_rate, b1=cfg.b1, b2=cfg.b2, weight_decay=cfg.weight_decay))


def warm_start_schedule(cfg: WarmStartConfig) -> optax.Schedule:
  """Linear warm-up over a twentieth of the steps, cosine decay to a tenth of the peak."""
  return optax.warmup_cosine_decay_schedule(0.0, cfg.learning_rate, max(1, cfg.steps // 20),
                                            max(2, cfg.steps), cfg.learning_rate / 10)


def init_state(params, tx: optax.GradientTransformation, frozen=None) -> TrainState:
  """The state before the first update; `params` and `frozen` as `trainable.split` gives them."""
  return TrainState(jnp.int32(0), params, tx.init(params), frozen)


def gradients(params, batch, *, loss, model, cfg: StepConfig, frozen=None):
  """((loss, metrics), gradient) of a whole optimizer batch, summed over `cfg.micro_batches`.

  The weights of `loss` were computed on the whole batch, so it is additive over rows and the split
  changes nothing.

  Args:
    params: the trained leaves, which the gradient is taken for.
    batch, loss, model, cfg: as in `train_step`.
    frozen: the other leaves.
  """
  def of_trained(trained, rows):
    return loss(trainable.merge(trained, frozen, cfg.parameters), rows, model=model, cfg=cfg.loss)

  value_and_grad = jax.value_and_grad(of_trained, has_aux=True)
  if cfg.micro_batches == 1:
    return value_and_grad(params, batch)

  def accumulate(carry, micro_batch):
    (value, metrics), grads = value_and_grad(params, micro_batch)
    return jax.tree.map(jnp.add, carry, (value, grads)), metrics

  zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
  (value, grads), stacked = lax.scan(accumulate, zeros, split_rows(batch, cfg.micro_batches))
  return (value, {name: metric.reduce() for name, metric in stacked.items()}), grads


def train_step(state: TrainState, batch, *, loss, model, tx,
               cfg: StepConfig) -> tuple[TrainState, dict]:
  """One update.

  Args:
    state: the current state; the new one has the same frozen leaves.
    batch: pytree whose leaves lead with rows; `loss` knows its type.
    loss: (params, batch, *, model, cfg) -> (scalar, metrics), additive over rows.
    model, tx, cfg: static.

  Returns:
    (new state, mergeable metrics). `optimizer/grad_norm` is the norm before clipping.
  """
  if needs_weights(batch, cfg):
    params = trainable.merge(state.params, state.frozen, cfg.parameters)
    batch = with_estimator_weights(params, batch, model=model, cfg=cfg)
  (value, metrics), grads = gradients(state.params, batch, loss=loss, model=model, cfg=cfg,
                                      frozen=state.frozen)
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  one = jnp.float32(1)
  metrics = {
      **metrics, "loss/total": Mean(value, one),
      "optimizer/grad_norm": Mean(optax.tree.norm(grads), one)
  }
  return TrainState(state.step + 1, params, opt_state, state.frozen), metrics


def state_shardings(model, tx, mesh, cfg: ParametersConfig = ParametersConfig()) -> TrainState:
  """Shardings of a state: optimizer moments lie as their parameters do, counters are replicated."""
  trained, frozen = trainable.shardings(model, cfg, mesh)
  whole = parallel.replicated(mesh)

  def of_parameter(moment, sharding):
    return sharding

  def of_counter(counter):
    return whole

  moments = jax.eval_shape(tx.init, trainable.shapes_of(model, cfg)[0])
  opt_state = optax.tree_map_params(tx, of_parameter, moments, trained,
                                    transform_non_params=of_counter)
  return TrainState(whole, trained, opt_state, frozen)


@dataclasses.dataclass(frozen=True)
class TrainStep:
  """`train_step` compiled for a mesh: (state, batch) -> (state, metrics).

  Attributes:
    compiled: the jitted program, (state without frozen leaves, frozen leaves, batch) -> the same
      without frozen leaves.
  """

  compiled: jax.stages.Wrapped

  def __call__(self, state: TrainState, batch) -> tuple[TrainState, dict]:
    new, metrics = self.compiled(state.replace(frozen=None), state.frozen, batch)
    return new.replace(frozen=state.frozen), metrics

  def trace(self, state: TrainState, batch) -> jax.stages.Traced:
    """The program for arguments of these shapes, which may be abstract; it can be lowered."""
    return self.compiled.trace(state.replace(frozen=None), state.frozen, batch)


def make_train_step(loss, model, tx, cfg: StepConfig, mesh) -> TrainStep:
  """Returns `train_step` compiled for a mesh.

  The state is sharded, and batch rows are spread over the data axes. Step, trained leaves and
  optimizer state are donated. Frozen leaves are not, so that other states and the reference policy
  may share them.
  """
  model = dataclasses.replace(model, constrain=parallel.Layout(mesh))
  whole = state_shardings(model, tx, mesh, cfg.parameters)
  layout = whole.replace(frozen=None)

  def update(state, frozen, batch):
    new, metrics = train_step(state.replace(frozen=frozen), batch, loss=loss, model=model, tx=tx,
                              cfg=cfg)
    return new.replace(frozen=None), metrics

  update.__name__ = "train_step"  # how profiles and compilation logs call it
  return TrainStep(jax.jit(update, donate_argnums=0,
                           in_shardings=(layout, whole.frozen, parallel.rows(mesh)),
                           out_shardings=(layout, parallel.replicated(mesh))))
