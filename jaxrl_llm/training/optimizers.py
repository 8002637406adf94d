"""Optimizers by name: AdamW, Adafactor, and any gradient transformation of optax.

Each comes after a clip by the global norm, which is the same for all. A name that is not registered
is looked up in `optax` and then in `optax.contrib`; its numbers are the keyword arguments of that
function with a plain default, so `optimizer.name=muon optimizer.ns_steps=4` needs no line here.
Muon takes leaves of two axes for matrices; projections of attention have three here, and get Adam.
"""

import dataclasses
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from jaxrl_llm.config import ConfigError, OptimizerConfig, WarmStartConfig
from jaxrl_llm.fields import option
from jaxrl_llm.registry import OPTIMIZERS, Entry

BELOW_1 = 1 - 1e-6  # a decay of 1 never forgets the zeros that a moment begins with
SHARED = ("learning_rate", "weight_decay")  # keys of the section that an optimizer may read


@dataclasses.dataclass(frozen=True)
class OptimizerEntry(Entry):
  """An optimizer in the table.

  Attributes:
    function: `optimizer(learning_rate, weight_decay, cfg)` -> an `optax.GradientTransformation`, or
      a list of transformations in order; learning_rate is a number or a schedule.
    decays: whether it reads `weight_decay`.
  """

  decays: bool = True


def register(name: str, numbers: type | None = None, *, replace: bool = False, **defaults):
  """Returns a decorator that enters an optimizer; see `OptimizerEntry`.

  Arguments as in `registry.Table.register`.
  """
  return OPTIMIZERS.register(name, numbers, replace=replace, make=OptimizerEntry, **defaults)


@dataclasses.dataclass(frozen=True)
class AdamW:
  """Hyperparameters of `adamw`."""

  b1: float = option(0.9, "decay of the first moment", low=0.0, high=BELOW_1)
  b2: float = option(0.95, "decay of the second moment", low=0.0, high=BELOW_1)
  moment_dtype: str = option("float32", "dtype in which the first moment is held; the second one "
                             "stays float32", choices=("float32", "bfloat16"))


@register("adamw", AdamW)
def adamw(learning_rate, weight_decay: float, cfg: AdamW) -> optax.GradientTransformation:
  """Adam with decoupled weight decay, which is multiplied only by the learning rate.

  Source: arXiv 1711.05101.
  """
  # None is f32, too; older checkpoints of a run were made with it.
  moment_dtype = None if cfg.moment_dtype == "float32" else cfg.moment_dtype
  return optax.adamw(learning_rate, b1=cfg.b1, b2=cfg.b2, weight_decay=weight_decay,
                     mu_dtype=moment_dtype)


@dataclasses.dataclass(frozen=True)
class Adafactor:
  """Hyperparameters of `adafactor`."""

  decay_power: float = option(0.8, "c: in step t, the decay of the second moment is 1 - t^-c",
                              low=0.0, high=1.0)
  max_update_rms: float = option(1.0, "root mean square above which the update of a leaf is scaled "
                                 "down", low=1e-9)


@register("adafactor", Adafactor)
def adafactor(learning_rate, weight_decay: float,
              cfg: Adafactor) -> list[optax.GradientTransformation]:
  """Adafactor without relative step sizes and without a first moment.

  The second moment is a sum per row and one per column of each matrix; matrices below 128 rows or
  columns have a moment for each entry.

  Source: arXiv 1804.04235.
  """
  return [optax.scale_by_factored_rms(decay_rate=cfg.decay_power),
          optax.clip_by_block_rms(cfg.max_update_rms), optax.add_decayed_weights(weight_decay),
          optax.scale_by_learning_rate(learning_rate)]


def optax_entry(name: str) -> OptimizerEntry | None:
  """Returns an entry for a function of optax or optax.contrib; None if there is none of that name.

  An optimizer is a function with an argument `learning_rate`.
  """
  function = getattr(optax, name, None) or getattr(contrib, name, None)
  try:
    parameters = inspect.signature(function).parameters
  except (TypeError, ValueError):
    return None
  if not inspect.isfunction(function) or "learning_rate" not in parameters:
    return None
  plain = {p.name: p.default for p in parameters.values()
           if p.name not in SHARED and isinstance(p.default, (bool, int, float, str))}

  def make(learning_rate, weight_decay: float, cfg) -> optax.GradientTransformation:
    arguments: dict[str, Any] = {number: getattr(cfg, number) for number in plain}
    if "weight_decay" in parameters:
      arguments["weight_decay"] = weight_decay
    return function(learning_rate, **arguments)

  fields = [(number, type(default), option(default, f"argument of {function.__module__}.{name}"))
            for number, default in plain.items()]
  return OptimizerEntry(make, dataclasses.make_dataclass(f"Numbers_{name}", fields, frozen=True),
                        "weight_decay" in parameters)


OPTIMIZERS.fallback = optax_entry


def check(cfg: OptimizerConfig) -> None:
  """Refuses a weight decay that the optimizer would leave out, and an optimizer that needs more
  than gradients and parameters, such as the value of the loss.

  Raises:
    ConfigError: naming the key.
  """
  if cfg.weight_decay and not OPTIMIZERS[cfg.name].decays:
    raise ConfigError(
        f"optimizer.weight_decay = {cfg.weight_decay} with optimizer.name = {cfg.name!r}, which "
        "has no argument weight_decay. Fix: optimizer.weight_decay=0.0, or another optimizer.")
  params = {"matrix": jax.ShapeDtypeStruct((4, 4), jnp.float32)}
  try:
    updates, _ = jax.eval_shape(functools.partial(_one_step, make_optimizer(cfg)), params)
    if jax.tree.map(jnp.shape, updates) != jax.tree.map(jnp.shape, params):
      raise TypeError("its updates have other shapes than the parameters")
  except Exception as error:  # any may come out of a function of optax or of a plugin
    reason = (str(error).splitlines() or [""])[0]
    raise ConfigError(
        f"optimizer.name = {cfg.name!r} ({OPTIMIZERS[cfg.name].where}) with these numbers takes no "
        f"step by gradients and parameters alone ({type(error).__name__}: {reason}). Fix: another "
        "optimizer, such as adamw.") from error


def _one_step(optimizer: optax.GradientTransformation, params):
  return optimizer.update(params, optimizer.init(params), params)


def make_optimizer(
    cfg: OptimizerConfig,
    learning_rate: float | optax.Schedule | None = None) -> optax.GradientTransformation:
  """Returns the optimizer of a section after a clip by the global norm.

  Args:
    cfg: the section.
    learning_rate: replaces the config's, as a number or a schedule; None: the config's.
  """
  if learning_rate is None:
    learning_rate = _learning_rate(cfg)
  entry, numbers = OPTIMIZERS[cfg.name], OPTIMIZERS.numbers(cfg)
  transforms = entry.function(learning_rate, cfg.weight_decay, numbers)
  parts = transforms if isinstance(transforms, list) else [transforms]
  return optax.chain(optax.clip_by_global_norm(cfg.max_grad_norm), *parts)


def _learning_rate(cfg: OptimizerConfig) -> float | optax.Schedule:
  peak, warm_up = cfg.learning_rate, None
  if cfg.warmup_steps:
    warm_up = optax.linear_schedule(0.0, peak, cfg.warmup_steps)
  if not cfg.decay_steps:
    return warm_up or peak
  decay = optax.linear_schedule(peak, peak / 10, cfg.decay_steps)
  return optax.join_schedules([warm_up, decay], [cfg.warmup_steps]) if warm_up else decay


def warm_start_schedule(cfg: WarmStartConfig) -> optax.Schedule:
  """Returns a schedule: linear warm-up from 0 over 1/20 of the steps, cosine decay to 1/10 of the
  peak.

  With only one step it has the peak: from 0 it would learn nothing.
  """
  if cfg.steps == 1:
    return optax.constant_schedule(cfg.learning_rate)
  return optax.warmup_cosine_decay_schedule(0.0, cfg.learning_rate, max(1, cfg.steps // 20),
                                            max(2, cfg.steps), cfg.learning_rate / 10)
