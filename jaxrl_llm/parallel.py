"""Devices: the mesh, the table from logical to physical axes, and transfers from host to device.

No other module asks for devices. Arrays are laid out by `NamedSharding` under `jax.jit`, and the
compiler inserts the collectives.
"""

import dataclasses
import functools
import logging

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl_llm.config import Config, ConfigError, MeshConfig

# Logical axis -> mesh axes. Axes that are not named are replicated.
RULES = {
    "rows": ("data", "fsdp"),
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "experts": "tensor",
}
# A token step of decoding reads every weight. So the sampler's copy is not divided over fsdp: that
# would send all weights over the wire for each token.
DECODING_RULES = {**RULES, "embed": None}


def make_mesh(cfg: MeshConfig, devices=None) -> Mesh:
  """Returns the mesh (data, fsdp, tensor) that trains: all devices but the last `cfg.rollout`.

  Args:
    devices: None: all devices of JAX.

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
        f"{data * fixed} devices, but there are {count}{beside}. "
        f"Fix: let their product be {count}.")
  return _mesh(devices, (data, cfg.fsdp, cfg.tensor))


def rollout_mesh(cfg: MeshConfig, mesh: Mesh, devices=None) -> Mesh:
  """Returns the mesh that samples: the last `cfg.rollout` devices, each with all parameters.

  If `cfg.rollout` is 0, this is `mesh`.

  Args:
    mesh: from `make_mesh` for the same devices.

  Raises:
    ConfigError: no device is left to train on, or there are several processes.
  """
  _, rest = _divided(cfg, devices)
  return _mesh(rest, (len(rest), 1, 1)) if rest else mesh


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


def _mesh(devices, shape: tuple[int, int, int]) -> Mesh:
  """Returns a mesh whose neighbours are neighbours in the machine's network, as far as it has one.

  Devices that are a part of a slice have no such order, and stay in that of the list.
  """
  try:
    grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  except (NotImplementedError, ValueError, AssertionError) as error:
    _log_once(f"mesh of {len(devices)} devices in the order of the list: {error}")
    grid = np.asarray(devices).reshape(shape)
  return Mesh(grid, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


def check(cfg: Config, mesh: Mesh, sampling: Mesh | None = None) -> None:
  """Checks that rows divide over the devices that hold them, and that overlap cannot deadlock.

  Two threads that launch programs with collectives on the same devices may wait for each other
  forever: each device runs its programs in the order in which it received them, and the order may
  differ between devices.

  Args:
    mesh: devices that train.
    sampling: devices that sample; None: the same.

  Raises:
    ConfigError: naming the rows that do not divide; updates.overlap on several devices that both
      train and sample; rollout.shared_prefix on several devices that sample.
  """
  apart = sampling is not None and sampling is not mesh
  if cfg.updates.overlap and not apart and mesh.size > 1:
    raise ConfigError(
        f"updates.overlap = True on {mesh.size} devices that both train and sample: their "
        "collectives may deadlock. "
        f"Fix: {_rollout_devices_fix(cfg, mesh.size)}updates.overlap=False.")
  sampled_on = sampling if apart else mesh
  if cfg.rollout.shared_prefix and sampled_on.size > 1:
    raise ConfigError(f"rollout.shared_prefix = True on {sampled_on.size} devices that sample: "
                      "allowed is 1. Fix: rollout.shared_prefix=False.")
  if apart:
    _check_rows(_sampled_rows(cfg), sampling.size, "mesh.rollout")
  _check_rows(_trained_rows(cfg), mesh.shape["data"] * mesh.shape["fsdp"], "mesh.data * mesh.fsdp")


def _trained_rows(cfg: Config) -> list[tuple[str, int]]:
  """Returns (name, rows) of everything that the training devices divide."""
  micro_rows = cfg.rows // cfg.updates.optimizer_batches // cfg.updates.micro_batches
  rows = [("rows of a micro-batch", micro_rows)]
  if cfg.rollout.slots:
    rows += [("rollout.slots", min(cfg.rollout.slots, cfg.rows))]
  if cfg.warm_start.steps:
    rows += [("rows of a warm-start micro-batch",
              cfg.warm_start.batch_size // cfg.warm_start.micro_batches)]
  return rows


def _sampled_rows(cfg: Config) -> list[tuple[str, int]]:
  """Returns (name, rows) of everything that devices which only sample divide."""
  slots = [("rollout.slots", min(cfg.rollout.slots, cfg.rows))] if cfg.rollout.slots else []
  return [("rows of an iteration", cfg.rows), *slots]


def _divide(named_rows: list[tuple[str, int]], shards: int) -> bool:
  return all(rows % shards == 0 for _, rows in named_rows)


def _check_rows(named_rows: list[tuple[str, int]], shards: int, axes: str) -> None:
  for name, rows in named_rows:
    if rows % shards:
      raise ConfigError(f"{name} = {rows} does not divide over {axes} = {shards} devices. "
                        f"Fix: a multiple of {shards}.")


def _rollout_devices_fix(cfg: Config, count: int) -> str:
  """Suggests a value of mesh.rollout for an error message, or '' if no value divides the rows.

  Of several values, suggests the one nearest to half of the `count` devices.
  """
  mesh = cfg.mesh

  def fits(sampling: int) -> bool:
    training = count - sampling
    return (training % (mesh.fsdp * mesh.tensor) == 0 and _divide(_sampled_rows(cfg), sampling) and
            _divide(_trained_rows(cfg), training // mesh.tensor))

  def distance(sampling: int) -> int:
    return abs(2 * sampling - count)

  most = 1 if cfg.rollout.shared_prefix else count - 1
  found = [sampling for sampling in range(1, most + 1) if fits(sampling)]
  if not found or jax.process_count() > 1:
    return ""
  data = "" if mesh.data < 0 else " with mesh.data=-1"
  return f"mesh.rollout={min(found, key=distance)}{data}, or "


def padded(rows: int, mesh: Mesh) -> int:
  """Returns `rows`, rounded up to divide over the devices that hold rows."""
  shards = mesh.shape["data"] * mesh.shape["fsdp"]
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
    count = int(np.prod([mesh.shape[n] for n in names]))
    if count > 1 and size % count:
      _log_once(f"axis {axis!r} of size {size} does not divide over {names} = {count} devices: "
                "replicated")
    if count == 1 or size % count or used & set(names):
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
    """Returns function(rows, whole), which each device computes from its own rows.

    Inside, shapes are those of one device: a loop over chunks of rows is a loop over its own ones.
    `whole` is fetched once before the function, and its gradient is reduced once after it, however
    many chunks there are. The mesh's tensor axis stays with the compiler.

    Args:
      rows: pytree of arrays that lead with rows; so must the function's results.
      whole: pytree of arrays that every row reads.
    """
    axes = RULES["rows"]
    shards = int(np.prod([self.mesh.shape[name] for name in axes]))
    if shards == 1 or any(x.shape[0] % shards for x in jax.tree.leaves(rows)):
      return function(rows, whole)
    split = PartitionSpec(axes)
    # Without this the backward pass would fetch it a second time.
    whole = jax.lax.with_sharding_constraint(whole, replicated(self.mesh))
    return jax.shard_map(function, mesh=self.mesh, in_specs=(split, PartitionSpec()),
                         out_specs=split, axis_names=set(axes), check_vma=False)(rows, whole)


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


def to_global(tree, mesh: Mesh):
  """Returns arrays whose leading axis spans all processes, from each process's rows (numpy)."""

  def spread(x):
    return jax.make_array_from_process_local_data(rows(mesh), np.asarray(x))

  return jax.tree.map(spread, tree)


def gather_host(tree):
  """Returns numpy arrays; waits for the computation that makes the device arrays."""
  return jax.device_get(tree)
