"""Devices: the mesh, the table from logical to physical axes, and transfers from host to device.

No other module asks for devices. Arrays are laid out by `NamedSharding` under `jax.jit`, and the
compiler inserts the collectives.
"""

import dataclasses
import functools
import logging
import math

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl_llm.config import ConfigError, MeshConfig

# Logical axis -> mesh axes. Axes that are not named are replicated.
RULES = {
    "rows": ("data", "fsdp"),
    "length": "sequence",
    "vocab": "tensor",
    "embed": ("fsdp", "sequence"),
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "experts": "tensor",
    # Attention needs all tokens of a row, so each device has them for some of the heads there
    # (arXiv 2309.14509).
    "attending_heads": ("tensor", "sequence"),
    "embed_of_tokens": "sequence",
}
AXES = ("data", "fsdp", "sequence", "tensor")
# A token step of decoding reads every weight. So the sampler's copy is not divided over fsdp: that
# would send all weights over the wire for each token.
DECODING_RULES = {**RULES, "embed": None}


def make_mesh(cfg: MeshConfig, devices=None) -> Mesh:
  """Returns the mesh (AXES) that trains: all devices but the last `cfg.rollout`.

  Args:
    devices: None: all devices of JAX.

  Raises:
    ConfigError: the axes do not multiply to the number of devices.
  """
  devices, _ = _divided(cfg, devices)
  if cfg.data == 0:
    raise ConfigError(
        "mesh.data = 0: allowed are -1 and 1 to inf. Fix: mesh.data=-1, which takes all devices.")
  count, fixed = len(devices), cfg.fsdp * cfg.sequence * cfg.tensor
  data = cfg.data if cfg.data > 0 else max(1, count // fixed)
  if data * fixed != count:
    beside = f" beside mesh.rollout = {cfg.rollout}" if cfg.rollout else ""
    raise ConfigError(
        f"mesh.data = {cfg.data}, mesh.fsdp = {cfg.fsdp}, mesh.sequence = {cfg.sequence}, "
        f"mesh.tensor = {cfg.tensor} make {data * fixed} devices, but there are {count}{beside}. "
        f"Fix: let their product be {count}.")
  return _mesh(devices, (data, cfg.fsdp, cfg.sequence, cfg.tensor))


def rollout_mesh(cfg: MeshConfig, mesh: Mesh, devices=None) -> Mesh:
  """Returns the mesh that samples: the last `cfg.rollout` devices, each with all parameters.

  If `cfg.rollout` is 0, these are the devices of `mesh`, as in `of_whole_rows`.

  Args:
    mesh: from `make_mesh` for the same devices.

  Raises:
    ConfigError: no device is left to train on, or there are several processes.
  """
  _, rest = _divided(cfg, devices)
  return _mesh(rest, (len(rest), 1, 1, 1)) if rest else of_whole_rows(mesh)


def of_whole_rows(mesh: Mesh) -> Mesh:
  """Returns the mesh in which what divided a row's tokens divides rows; `mesh` if nothing did.

  For sampling: a step of decoding has one token of each row.
  """
  data, fsdp, sequence, tensor = mesh.devices.shape
  if sequence == 1:
    return mesh
  grid = mesh.devices.reshape(data, fsdp * sequence, 1, tensor)
  return Mesh(grid, AXES, axis_types=mesh.axis_types)


def per_engine(mesh: Mesh) -> list[Mesh]:
  """Returns a mesh for each device, or for each set of devices that share the heads of a row."""
  grid = mesh.devices.reshape(-1, 1, 1, 1, mesh.shape["tensor"])
  return [Mesh(devices, AXES, axis_types=mesh.axis_types) for devices in grid]


def apart(sampling: Mesh, mesh: Mesh) -> bool:
  """Returns whether other devices sample than train on `mesh`."""
  return set(sampling.devices.flat) != set(mesh.devices.flat)


def training_devices(cfg: MeshConfig, devices=None) -> list:
  """Returns all devices but the last `cfg.rollout`, or all devices if none would be left.

  For programs that read a run on a machine with fewer devices than the run had.
  """
  devices = list(jax.devices() if devices is None else devices)
  return devices[:max(0, len(devices) - cfg.rollout)] or devices


def _divided(cfg: MeshConfig, devices) -> tuple[list, list]:
  """Returns (devices that train, the devices of `mesh.rollout`)."""
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


def _mesh(devices, shape: tuple[int, ...]) -> Mesh:
  """Returns a mesh whose neighbours are neighbours in the machine's network, as far as it has one.

  Devices that are a part of a slice have no such order, and stay in that of the list.
  """
  try:
    grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  except (NotImplementedError, ValueError, AssertionError) as error:
    _log_once(f"mesh of {len(devices)} devices in the order of the list: {error}")
    grid = np.asarray(devices).reshape(shape)
  return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def row_shards(mesh: Mesh) -> int:
  """Returns over how many shards the mesh divides rows."""
  return mesh.shape["data"] * mesh.shape["fsdp"]


def padded(rows: int, mesh: Mesh) -> int:
  """Returns `rows`, rounded up to divide over the devices that hold rows."""
  shards = row_shards(mesh)
  return -(-rows // shards) * shards


def spec(axes: tuple, shape: tuple[int, ...], mesh: Mesh, rules=RULES) -> PartitionSpec:
  """Returns the physical layout of an array with these logical axes.

  A dimension that does not divide over its devices is replicated, which is logged once.

  Args:
    rules: logical axis -> mesh axes.
  """
  out: list = []
  used: set[str] = set()
  for axis, size in zip(axes, shape, strict=True):
    rule = rules.get(axis)
    names = () if rule is None else (rule,) if isinstance(rule, str) else rule
    names = tuple(n for n in names if mesh.shape[n] > 1)
    count = math.prod(mesh.shape[n] for n in names)
    if count > 1 and size % count:
      _log_once(f"axis {axis!r} of size {size} does not divide over {names} = {count} devices: "
                "replicated")
    if count == 1 or size % count or used & set(names):
      out.append(None)
    else:
      used |= set(names)
      out.append(names if len(names) > 1 else names[0])
  return PartitionSpec(*out)


@functools.cache
def _log_once(message: str) -> None:
  logging.getLogger(__name__).warning(message)


@dataclasses.dataclass(frozen=True)
class Layout:
  """Lays activations out by their logical axes; `Model` takes it as `constrain`."""

  mesh: Mesh

  def __call__(self, x, axes: tuple):
    if self.mesh.size == 1:
      return x
    layout = NamedSharding(self.mesh, spec(axes, x.shape, self.mesh))
    return jax.lax.with_sharding_constraint(x, layout)

  @property
  def platform(self) -> str:
    """The kind of the devices, as JAX calls it."""
    return self.mesh.devices.flat[0].platform

  @property
  def divides_tokens(self) -> bool:
    """Whether a row's tokens are divided over devices."""
    return self.mesh.shape["sequence"] > 1

  def by_shard(self, function, arrays: tuple, axes: tuple):
    """Returns function(*arrays), which each device computes from its own parts, as kernels must.

    Args:
      axes: logical axes of each array; the result has those of the first.
    """
    if self.mesh.size == 1:
      return function(*arrays)
    layouts = tuple(spec(names, x.shape, self.mesh)
                    for x, names in zip(arrays, axes, strict=True))
    return jax.shard_map(function, mesh=self.mesh, in_specs=layouts, out_specs=layouts[0],
                         check_vma=False)(*arrays)

  def by_rows(self, function, rows, whole):
    """Returns function(rows, whole), which each device computes from its own tokens.

    Inside, shapes are those of one device: a loop over chunks of rows is a loop over its own ones.
    `whole` is fetched once before the function, and its gradient is reduced once after it, however
    many chunks there are. The mesh's tensor axis stays with the compiler.

    Args:
      rows: pytree of arrays [rows, tokens, ...]; so must the function's results be.
      whole: pytree of arrays that every token reads.
    """
    split = spec(("rows", "length"), jax.tree.leaves(rows)[0].shape[:2], self.mesh)
    axes = {name for names in split if names
            for name in ([names] if isinstance(names, str) else names)}
    if not axes:
      return function(rows, whole)
    # Without this the backward pass would fetch it a second time.
    whole = jax.lax.with_sharding_constraint(whole, replicated(self.mesh))
    found = jax.shard_map(function, mesh=self.mesh, in_specs=(split, PartitionSpec()),
                          out_specs=split, axis_names=axes, check_vma=False)(rows, whole)
    # What follows scans along rows, of arrays that are small beside one layer's activations.
    return jax.tree.map(lambda x: self(x, ("rows", *(None,) * (x.ndim - 1))), found)


def rows(mesh: Mesh) -> NamedSharding:
  """Returns the sharding that divides the leading axis over the devices that hold rows."""
  return NamedSharding(mesh, PartitionSpec(RULES["rows"]))


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding that puts a whole array on each device."""
  return NamedSharding(mesh, PartitionSpec())


def param_shardings(model, mesh: Mesh, rules=RULES):
  """Returns a NamedSharding for every parameter; `rules` as in `spec`."""

  def sharding(x, axes):
    return NamedSharding(mesh, spec(axes, x.shape, mesh, rules))

  return jax.tree.map(sharding, model.shapes(), model.logical_axes())


def transfer(tree, shardings):
  """Returns the arrays laid out by `shardings`, a prefix of the tree, on any devices.

  An array that has its layout already is not copied. No program with collectives is launched, so
  any thread may call this.
  """
  return jax.device_put(tree, shardings)


def held_by(tree, mesh: Mesh):
  """Returns the arrays on the devices of `mesh` alone, from what they hold; nothing is copied.

  Args:
    tree: arrays of a larger mesh with the same axes, not divided over those that divide rows.
  """

  def held(x):
    shards = {shard.device: shard.data for shard in x.addressable_shards}
    layout = NamedSharding(mesh, x.sharding.spec)
    return jax.make_array_from_single_device_arrays(
        x.shape, layout, [shards[device] for device in mesh.devices.flat])

  return jax.tree.map(held, tree)


def to_global(tree, mesh: Mesh):
  """Returns arrays whose leading axis spans all processes, from each process's rows (numpy)."""

  def spread(x):
    return jax.make_array_from_process_local_data(rows(mesh), np.asarray(x))

  return jax.tree.map(spread, tree)


def gather_host(tree):
  """Returns numpy arrays; waits for the computation that makes the device arrays."""
  return jax.device_get(tree)
