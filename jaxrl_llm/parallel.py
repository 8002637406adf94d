"""Devices: the mesh, the one table from logical to physical axes, and the crossings between host
and device.

Only here are devices asked for. Arrays are laid out by `NamedSharding` under `jax.jit`; the
compiler inserts the collectives.
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
  """Mesh (data, fsdp, tensor) over `devices` (all by default), less the last `cfg.rollout`.

  Raises:
    ConfigError: the axes do not multiply to the number of devices.
  """
  devices, _ = _divided(cfg, devices)
  if cfg.data == 0:
    raise ConfigError(
        "mesh.data = 0: allowed are -1 and 1 to inf. Fix: mesh.data=-1, which takes all devices.")
  count, fixed = len(devices), cfg.fsdp * cfg.tensor
  data = cfg.data if cfg.data > 0 else max(1, count // fixed)
  if data * fixed != count:
    beside = f" beside mesh.rollout = {cfg.rollout}" if cfg.rollout else ""
    raise ConfigError(
        f"mesh.data = {cfg.data}, mesh.fsdp = {cfg.fsdp}, mesh.tensor = {cfg.tensor} make "
        f"{data * fixed} "
        f"devices, but there are {count}{beside}. Fix: let their product be {count}.")
  return _mesh(devices, (data, cfg.fsdp, cfg.tensor))


def rollout_mesh(cfg: MeshConfig, mesh: Mesh, devices=None) -> Mesh:
  """Where rollouts are drawn: the last `cfg.rollout` of the devices, each with all parameters; 0:
  `mesh` itself.

  Args:
    mesh: of `make_mesh` for the same devices.

  Raises:
    ConfigError: no device is left to train on, or there are several processes.
  """
  _, rest = _divided(cfg, devices)
  return _mesh(rest, (len(rest), 1, 1)) if rest else mesh


def training_devices(cfg: MeshConfig, devices=None) -> list:
  """All but the last `cfg.rollout`; all, where that leaves none: enough for what only reads a run.
  """
  devices = list(jax.devices() if devices is None else devices)
  return devices[:max(0, len(devices) - cfg.rollout)] or devices


def _divided(cfg: MeshConfig, devices) -> tuple[list, list]:
  """(those that train, those of `mesh.rollout`)."""
  devices = list(jax.devices() if devices is None else devices)
  left = len(devices) - cfg.rollout
  if cfg.rollout and jax.process_count() > 1:
    raise ConfigError(
        f"mesh.rollout = {cfg.rollout} with {jax.process_count()} processes: allowed is 0. "
        "Fix: mesh.rollout=0, or one process.")
  if left < 1:
    raise ConfigError(
        f"mesh.rollout = {cfg.rollout} leaves none of the {len(devices)} devices to train on. "
        f"Fix: mesh.rollout={len(devices) - 1} or less.")
  return devices[:left], devices[left:]


def _mesh(devices, shape: tuple[int, int, int]) -> Mesh:
  return Mesh(
      np.asarray(devices).reshape(shape), ("data", "fsdp", "tensor"),
      axis_types=(AxisType.Auto,) * 3)


def check(cfg: Config, mesh: Mesh, drawing: Mesh | None = None) -> None:
  """Rows must divide over the devices that hold them, and draws ahead need devices of their own.

  Two threads that launch programs with collectives on the same devices may wait for each other for
  ever: each device runs what it was given first, and the order may differ between devices.

  Args:
    mesh: where training runs.
    drawing: where rollouts are drawn; None: there, too.

  Raises:
    ConfigError: naming the micro-batch or evaluation that does not divide, updates.overlap on
    several devices that
      train and draw, or rollout.shared_prefix on several that draw.
  """
  apart = drawing is not None and drawing is not mesh
  if cfg.updates.overlap and not apart and mesh.size > 1:
    raise ConfigError(
        f"updates.overlap = True on {mesh.size} devices that both train and draw: their "
        "collectives may "
        f"deadlock. Fix: {_devices_apart(cfg, mesh.size)}updates.overlap=False.")
  if cfg.rollout.shared_prefix and (count := (drawing if apart else mesh).size) > 1:
    raise ConfigError(f"rollout.shared_prefix = True on {count} devices that draw: allowed is 1. "
                      "Fix: rollout.shared_prefix=False.")
  if apart:
    _check_rows(_drawn_rows(cfg), drawing.size, "mesh.rollout")
  _check_rows(_trained_rows(cfg), mesh.shape["data"] * mesh.shape["fsdp"], "mesh.data * mesh.fsdp")


def _trained_rows(cfg: Config) -> list[tuple[str, int]]:
  """(name, rows) of what is laid out over the devices that train."""
  micro_rows = cfg.rows // cfg.updates.optimizer_batches // cfg.updates.micro_batches
  rows = [("rows of a micro-batch", micro_rows),
          ("task.heldout_problems", cfg.task.heldout_problems)]
  if cfg.rollout.slots:
    rows += [("rollout.slots", min(cfg.rollout.slots, cfg.rows))]
  if cfg.warm_start.steps:
    rows += [("rows of a warm-start micro-batch",
              cfg.warm_start.batch_size // cfg.warm_start.micro_batches)]
  return rows


def _drawn_rows(cfg: Config) -> list[tuple[str, int]]:
  """(name, rows) of what is laid out over devices that only draw."""
  slots = [("rollout.slots", min(cfg.rollout.slots, cfg.rows))] if cfg.rollout.slots else []
  return [("rows of an iteration", cfg.rows), *slots]


def _check_rows(checked: list[tuple[str, int]], shards: int, axes: str) -> None:
  for what, rows in checked:
    if rows % shards:
      raise ConfigError(f"{what} = {rows} does not divide over {axes} = {shards} devices. "
                        f"Fix: a multiple of {shards}.")


def _devices_apart(cfg: Config, count: int) -> str:
  """Words for a setting with which some of `count` devices only draw and all rows divide; none: no
  words.

  Of the numbers that do, the one nearest to half.
  """
  mesh, divide = cfg.mesh, lambda checked, shards: all(rows % shards == 0 for _, rows in checked)
  most = 1 if cfg.rollout.shared_prefix else count - 1
  found = [
      n for n in range(1, most + 1) if (count - n) % (mesh.fsdp * mesh.tensor) == 0 and
      divide(_drawn_rows(cfg), n) and divide(_trained_rows(cfg), (count - n) // mesh.tensor)
  ]
  if not found or jax.process_count() > 1:
    return ""
  data = "" if mesh.data < 0 else " with mesh.data=-1"
  return f"mesh.rollout={min(found, key=lambda n: abs(2 * n - count))}{data}, or "


def spec(axes: tuple, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
  """Physical layout of an array with these logical axes; a dimension that does not divide is
  replicated.
  """
  out, used = [], set()
  for axis, size in zip(axes, shape, strict=True):
    rule = RULES.get(axis)
    names = () if rule is None else (rule,) if isinstance(rule, str) else rule
    parts = int(np.prod([mesh.shape[n] for n in names]))
    if parts > 1 and size % parts:
      _log_once(
          f"axis {axis!r} of size {size} does not divide over {names} = {parts} devices: replicated"
      )
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
    return jax.lax.with_sharding_constraint(
        x, NamedSharding(self.mesh, spec(axes, x.shape, self.mesh)))


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


def transfer(tree, shardings):
  """Arrays laid out as `shardings` say (a prefix of the tree), on whatever devices; no copy where
  they lie so already.

  It launches no program with collectives, so any thread may call it.
  """
  return jax.device_put(tree, shardings)


def to_global(tree, mesh: Mesh):
  """Process-local rows (numpy) -> arrays whose leading axis spans all processes."""
  return jax.tree.map(lambda x: jax.make_array_from_process_local_data(rows(mesh), np.asarray(x)),
                      tree)


def gather_host(tree):
  """Device arrays -> numpy, after the computation that makes them has finished."""
  return jax.device_get(tree)
