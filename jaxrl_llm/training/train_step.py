"""One optimizer update: gradients summed over micro-batches, then the optimizer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxrl_llm import parallel
from jaxrl_llm.config import OptimizerConfig, StepConfig, WarmStartConfig
from jaxrl_llm.types import Mean, TrainState


class NonFiniteError(RuntimeError):
  """The loss or the gradient is not a number; the last good checkpoint stands."""


def make_optimizer(cfg: OptimizerConfig, learning_rate=None) -> optax.GradientTransformation:
  """AdamW behind a global-norm clip; `learning_rate` (number or schedule) replaces the config's."""
  if learning_rate is None:
    learning_rate = (optax.linear_schedule(0.0, cfg.learning_rate, cfg.warmup_steps) if cfg.warmup_steps
                     else cfg.learning_rate)
  return optax.chain(optax.clip_by_global_norm(cfg.max_grad_norm),
                     optax.adamw(learning_rate, b1=cfg.b1, b2=cfg.b2, weight_decay=cfg.weight_decay))


def warm_start_schedule(cfg: WarmStartConfig):
  """Linear warm-up over a twentieth of the steps, cosine decay to a tenth of the peak."""
  return optax.warmup_cosine_decay_schedule(0.0, cfg.learning_rate, max(1, cfg.steps // 20), max(2, cfg.steps),
                                            cfg.learning_rate / 10)


def init_state(params, tx: optax.GradientTransformation) -> TrainState:
  return TrainState(jnp.int32(0), params, tx.init(params))


def split_rows(tree, parts: int):
  """Leading axis [B] -> [parts, B / parts]; part i takes the rows i, i + parts, ...

  Each shard of a sharded leading axis gives every part an equal share, so that no row changes device.
  """
  split = lambda x: jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)
  return jax.tree.map(split, tree)


def join_rows(tree):
  """Inverse of `split_rows`."""
  join = lambda x: jnp.swapaxes(x, 0, 1).reshape(x.shape[0] * x.shape[1], *x.shape[2:])
  return jax.tree.map(join, tree)


def gradients(params, batch, *, loss, model, cfg: StepConfig):
  """((loss, metrics), gradient) of a whole optimizer batch, summed over `cfg.micro_batches`.

  `loss` is additive over rows, its weights having been computed on the whole batch, so the split changes nothing.
  """
  value_and_grad = jax.value_and_grad(functools.partial(loss, model=model, cfg=cfg.loss), has_aux=True)
  if cfg.micro_batches == 1:
    return value_and_grad(params, batch)

  def accumulate(carry, micro_batch):
    (value, metrics), grads = value_and_grad(params, micro_batch)
    return jax.tree.map(jnp.add, carry, (value, grads)), metrics

  zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
  (value, grads), stacked = lax.scan(accumulate, zeros, split_rows(batch, cfg.micro_batches))
  return (value, {name: metric.reduce() for name, metric in stacked.items()}), grads


def train_step(state: TrainState, batch, *, loss, model, tx, cfg: StepConfig) -> tuple[TrainState, dict]:
  """One update.

  Args:
    state: current state.
    batch: pytree whose leaves lead with rows; `loss` knows its type.
    loss: loss(params, batch, *, model, cfg) -> (scalar, metrics), additive over rows.
    model, tx, cfg: static.

  Returns:
    (new state, mergeable metrics with `loss/total` and `optimizer/grad_norm`, the norm before clipping).
  """
  (value, metrics), grads = gradients(state.params, batch, loss=loss, model=model, cfg=cfg)
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  one = jnp.float32(1)
  metrics = {**metrics, "loss/total": Mean(value, one), "optimizer/grad_norm": Mean(optax.tree.norm(grads), one)}
  return TrainState(state.step + 1, params, opt_state), metrics


def state_shardings(model, tx, mesh) -> TrainState:
  return TrainState(parallel.replicated(mesh), parallel.param_shardings(model, mesh),
                    parallel.opt_state_shardings(model, tx, mesh))


def make_train_step(loss, model, tx, cfg: StepConfig, mesh):
  """`train_step` compiled for a mesh: state sharded and donated, batch rows over the data axes."""
  model = dataclasses.replace(model, constrain=parallel.Layout(mesh))
  shardings = state_shardings(model, tx, mesh)
  step = functools.partial(train_step, loss=loss, model=model, tx=tx, cfg=cfg)
  return jax.jit(step, donate_argnums=0, in_shardings=(shardings, parallel.rows(mesh)),
                 out_shardings=(shardings, parallel.replicated(mesh)))
