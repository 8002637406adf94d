"""Devices: the mesh, the one table from logical to physical axes, and the crossings between host and device.

Only here are devices asked for. Arrays are laid out by `NamedSharding` under `jax.jit`; the compiler inserts the
collectives.
"""

import dataclasses
import functools
import logging

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl_llm.config import Config, ConfigError, MeshConfig

# Logical axis -> mesh axes. What is not named is replicated.
RULES = {
    "rows": ("data", "fsdp"),
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "experts": "tensor",
}


def make_mesh(cfg: MeshConfig, devices=None) -> Mesh:
  """Mesh (data, fsdp, tensor) over `devices` (all by default).

  Raises:
    ConfigError: the axes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  if cfg.data == 0:
    raise ConfigError("mesh.data = 0: allowed are -1 and 1 to inf. Fix: mesh.data=-1, which takes all devices.")
  count, fixed = len(devices), cfg.fsdp * cfg.tensor
  data = cfg.data if cfg.data > 0 else max(1, count // fixed)
  if data * fixed != count:
    raise ConfigError(f"mesh.data = {cfg.data}, mesh.fsdp = {cfg.fsdp}, mesh.tensor = {cfg.tensor} make {data * fixed} "
                      f"devices, but there are {count}. Fix: let their product be {count}.")
  shape = (data, cfg.fsdp, cfg.tensor)
  return Mesh(np.asarray(devices).reshape(shape), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


def check(cfg: Config, mesh: Mesh) -> None:
  """Rows must divide over the devices that hold them.

  Raises:
    ConfigError: naming the micro-batch or evaluation that does not.
  """
  shards = mesh.shape["data"] * mesh.shape["fsdp"]
  micro_rows = cfg.rows // cfg.updates.optimizer_batches // cfg.updates.micro_batches
  checked = [("rows of a micro-batch", micro_rows), ("task.heldout_problems", cfg.task.heldout_problems)]
  if cfg.rollout.slots:
    checked += [("rollout.slots", min(cfg.rollout.slots, cfg.rows))]
  if cfg.warm_start.steps:
    checked += [("rows of a warm-start micro-batch", cfg.warm_start.batch_size // cfg.warm_start.micro_batches)]
  for what, rows in checked:
    if rows % shards:
      raise ConfigError(f"{what} = {rows} does not divide over mesh.data * mesh.fsdp = {shards} devices. "
                        f"Fix: a multiple of {shards}.")


def spec(axes: tuple, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
  """Physical layout of an array with these logical axes; a dimension that does not divide is replicated."""
  out, used = [], set()
  for axis, size in zip(axes, shape, strict=True):
    rule = RULES.get(axis)
    names = () if rule is None else (rule,) if isinstance(rule, str) else rule
    parts = int(np.prod([mesh.shape[n] for n in names]))
    if parts > 1 and size % parts:
      _log_once(f"axis {axis!r} of size {size} does not divide over {names} = {parts} devices: replicated")
    if parts == 1 or size % parts or used & set(names):
      out.append(None)
    else:
      used |= set(names)
      out.append(rule)
  return PartitionSpec(*out)


@functools.cache
def _log_once(message: str) -> None:
  logging.getLogger(__name__).warning(message)


@dataclasses.dataclass(frozen=True)
class Layout:
  """Lays activations out by their logical axes; given to `Model` as `constrain`."""

  mesh: Mesh

  def __call__(self, x, axes: tuple):
    if self.mesh.size == 1:
      return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec(axes, x.shape, self.mesh)))


def rows(mesh: Mesh) -> NamedSharding:
  """Leading axis over the devices that hold rows."""
  return NamedSharding(mesh, PartitionSpec(RULES["rows"]))


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, PartitionSpec())


def param_shardings(model, mesh: Mesh):
  """NamedSharding of every parameter."""
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  axes = model.logical_axes()
  return jax.tree.map(lambda x, a: NamedSharding(mesh, spec(a, x.shape, mesh)), shapes, axes)


def to_global(tree, mesh: Mesh):
  """Process-local rows (numpy) -> arrays whose leading axis spans all processes."""
  return jax.tree.map(lambda x: jax.make_array_from_process_local_data(rows(mesh), np.asarray(x)), tree)


def gather_host(tree):
  """Device arrays -> numpy, after the computation that makes them has finished."""
  return jax.device_get(tree)
