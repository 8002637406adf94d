"""Meshes: which devices train, which sample, and which are in this process."""

import functools
import logging

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from jaxrl_llm.config import ConfigError, MeshConfig

AXES = ("data", "fsdp", "sequence", "tensor")


@functools.cache
def log_once(message: str) -> None:
  """Logs a warning, unless it was logged before."""
  logging.getLogger(__name__).warning(message)


def make_mesh(cfg: MeshConfig, devices=None) -> Mesh:
  """Returns the mesh (AXES) that trains: all devices but the last `cfg.rollout`.

  Args:
    devices: None: all devices of JAX.

  Raises:
    ConfigError: the axes do not multiply to the number of devices, or `data` does not divide over
      the slices of a TPU.
  """
  devices, _ = _split_devices(cfg, devices)
  if cfg.data == 0:
    raise ConfigError(
        "mesh.data = 0: allowed are -1 and 1 to inf. Fix: mesh.data=-1, which takes all devices.")
  count, shards = len(devices), cfg.fsdp * cfg.sequence * cfg.tensor
  data_size = cfg.data if cfg.data > 0 else max(1, count // shards)
  if data_size * shards != count:
    rollout_note = f" beside mesh.rollout = {cfg.rollout}" if cfg.rollout else ""
    raise ConfigError(
        f"mesh.data = {cfg.data}, mesh.fsdp = {cfg.fsdp}, mesh.sequence = {cfg.sequence}, "
        f"mesh.tensor = {cfg.tensor} make {data_size * shards} devices, but there are "
        f"{count}{rollout_note}. "
        f"Fix: let their product be {count}.")
  return _mesh(devices, (data_size, cfg.fsdp, cfg.sequence, cfg.tensor))


def rollout_mesh(cfg: MeshConfig, mesh: Mesh, devices=None) -> Mesh:
  """Returns the mesh that samples: the last `cfg.rollout` devices, each with all parameters.

  If `cfg.rollout` is 0, these are the devices of `mesh` in this process, as in `row_mesh`.

  Args:
    mesh: from `make_mesh` for the same devices.

  Raises:
    ConfigError: no device is left to train on, or there are several processes.
  """
  _, rollout_devices = _split_devices(cfg, devices)
  if not rollout_devices:
    return row_mesh(of_process(mesh))
  return _mesh(rollout_devices, (len(rollout_devices), 1, 1, 1))


def of_process(mesh: Mesh) -> Mesh:
  """Returns the devices of `mesh` that are in this process, as a mesh; all of them if it is the
  only process.

  Raises:
    ConfigError: devices that share rows are in several processes.
  """
  if not spans_processes(mesh):
    return mesh
  data_size, fsdp, sequence, tensor = mesh.devices.shape
  sets, mine = mesh.devices.reshape(data_size * fsdp, sequence, tensor), jax.process_index()
  is_inside = np.vectorize(_process)(sets) == mine
  is_local = is_inside.all((1, 2))
  if (is_inside.any((1, 2)) != is_local).any() or not is_local.any():
    raise ConfigError(
        f"mesh.sequence * mesh.tensor = {sequence * tensor}: devices that share rows are in "
        f"several processes, of {jax.local_device_count()} devices each. Fix: a product that "
        f"divides {jax.local_device_count()}.")
  return Mesh(sets[is_local][None], AXES, axis_types=mesh.axis_types)


def spans_processes(mesh: Mesh) -> bool:
  """Returns whether some of the devices are in other processes."""
  return jax.process_count() > 1 and any(
      _process(device) != jax.process_index() for device in mesh.devices.flat)


def _process(device) -> int:
  return device.process_index


def row_mesh(mesh: Mesh) -> Mesh:
  """Returns the mesh in which what divided a row's tokens divides rows; `mesh` if nothing did.

  For sampling: a step of decoding has one token of each row.
  """
  data_size, fsdp, sequence, tensor = mesh.devices.shape
  if sequence == 1:
    return mesh
  grid = mesh.devices.reshape(data_size, fsdp * sequence, 1, tensor)
  return Mesh(grid, AXES, axis_types=mesh.axis_types)


def per_engine(mesh: Mesh) -> list[Mesh]:
  """Returns a mesh for each device, or for each set of devices that share the heads of a row."""
  grid = mesh.devices.reshape(-1, 1, 1, 1, mesh.shape["tensor"])
  return [Mesh(devices, AXES, axis_types=mesh.axis_types) for devices in grid]


def apart(sampling: Mesh, mesh: Mesh) -> bool:
  """Returns whether devices sample that do not train on `mesh`."""
  return not set(sampling.devices.flat) <= set(mesh.devices.flat)


def training_devices(cfg: MeshConfig, devices=None) -> list:
  """Returns all devices but the last `cfg.rollout`, or all devices if none would be left.

  For programs that read a run on a machine with fewer devices than the run had.
  """
  devices = list(jax.devices() if devices is None else devices)
  return devices[:max(0, len(devices) - cfg.rollout)] or devices


def _split_devices(cfg: MeshConfig, devices) -> tuple[list, list]:
  """Returns (devices that train, the devices of `mesh.rollout`)."""
  devices = list(jax.devices() if devices is None else devices)
  num_train = len(devices) - cfg.rollout
  if cfg.rollout and jax.process_count() > 1:
    raise ConfigError(
        f"mesh.rollout = {cfg.rollout} with {jax.process_count()} processes: allowed is 0. "
        "Fix: mesh.rollout=0, or one process.")
  if num_train < 1:
    raise ConfigError(
        f"mesh.rollout = {cfg.rollout} leaves none of the {len(devices)} devices to train on. "
        f"Fix: mesh.rollout={len(devices) - 1} or less.")
  return devices[:num_train], devices[num_train:]


def _mesh(devices, shape: tuple[int, ...]) -> Mesh:
  """Returns a mesh whose neighbours are neighbours in the machine's network, as far as it has one.

  Several slices are joined by a network that is much slower than the network inside one, so that
  only `data` goes across. Devices that are a part of a slice have no such order, and stay in the
  list's order.

  Raises:
    ConfigError: `data` does not divide over the slices.
  """
  slices = slice_count(devices)
  if shape[0] % slices:
    raise ConfigError(
        f"mesh.data = {shape[0]} with {slices} slices of {len(devices) // slices} devices: the "
        "other axes would go across slices, whose network is many times slower. Fix: a multiple of "
        f"{slices}, such as mesh.data={slices} and mesh.fsdp={len(devices) // slices}.")
  of_slice = (shape[0] // slices, *shape[1:])
  try:
    if slices > 1:
      grid = mesh_utils.create_hybrid_device_mesh(of_slice, (slices, 1, 1, 1), devices,
                                                  allow_split_physical_axes=True)
    else:
      grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  except (NotImplementedError, ValueError, AssertionError) as error:
    log_once(f"mesh of {len(devices)} devices in the order of the list, not by the machine's "
             f"network: {str(error).splitlines()[0][:80]}")
    grid = np.asarray(sorted(devices, key=_slice) if slices > 1 else devices).reshape(shape)
  return Mesh(rows_in_processes(grid), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def rows_in_processes(grid: np.ndarray) -> np.ndarray:
  """Returns a grid [data, fsdp, sequence, tensor] in which devices that share rows are in one
  process, as sampling needs them (`of_process`); the grid itself if they are, or cannot be.

  In the order of a TPU's network, four neighbours may belong to two hosts of 2 x 2 chips.
  """
  sharing = grid.shape[2] * grid.shape[3]
  groups = np.vectorize(_process)(grid.reshape(-1, sharing))
  sizes = np.unique(groups, return_counts=True)[1]
  if (groups == groups[:, :1]).all() or (sizes % sharing).any():
    return grid
  # Stable: inside a process, and between processes, devices keep the order of the network.
  devices = sorted(grid.flat, key=lambda device: (_slice(device), _process(device)))
  out = np.empty(len(devices), object)
  out[:] = devices
  return out.reshape(grid.shape)


def slice_count(devices) -> int:
  """Returns over how many slices of TPUs the devices are spread; 1 of other devices."""
  return len({_slice(device) for device in devices})


def _slice(device) -> int:
  """Returns the slice of a TPU. GPUs number their machines in the same place, whose network is not
  slow.
  """
  return getattr(device, "slice_index", 0) if device.platform == "tpu" else 0


def row_shards(mesh: Mesh) -> int:
  """Returns over how many shards the mesh divides rows."""
  return mesh.shape["data"] * mesh.shape["fsdp"]


def padded(rows: int, mesh: Mesh) -> int:
  """Returns `rows`, rounded up to divide over the devices that hold rows."""
  shards = row_shards(mesh)
  return -(-rows // shards) * shards
