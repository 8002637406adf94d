"""Which rows divide over which devices; refuses those that do not, parameters that no memory holds,
and threads that could deadlock.
"""

import os
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  ConfigError,
  DynamicSamplingConfig,
  MeshConfig,
  RolloutConfig,
  ServerConfig,
  UpdateConfig,
  WarmStartConfig,
)
from jaxrl_llm.parallel import processes


class RowSections(NamedTuple):
  """The config sections that say which rows there are, and who divides them."""

  rollout: RolloutConfig
  updates: UpdateConfig
  warm_start: WarmStartConfig
  mesh: MeshConfig
  dynamic_sampling: DynamicSamplingConfig
  server: ServerConfig

  @classmethod
  def of(cls, cfg) -> "RowSections":
    """Returns the sections of a config."""
    return cls(*(getattr(cfg, name) for name in cls._fields))


def check(cfg: RowSections, mesh: Mesh, sampling: Mesh | None = None) -> None:
  """Checks that rows divide over the devices that hold them, and that overlap cannot deadlock.

  Groups must divide over processes, too, because no group is split between processes. Two threads
  that launch programs with collectives on the same devices may wait for each other forever: each
  device runs its programs in the order in which it received them, and the order may differ between
  devices.

  Args:
    mesh: devices that train.
    sampling: devices that sample, of this process; None: the same.

  Raises:
    ConfigError: naming the rows that do not divide; updates.overlap on several devices that both
      train and sample; rollout.shared_prefix on several devices that sample.
  """
  separate = sampling is not None and parallel.apart(sampling, mesh)
  sampled_rows = _sampled_rows(cfg.rollout)
  trained_rows = _trained_rows(cfg.rollout, cfg.updates, cfg.warm_start)
  _check_processes(cfg.rollout.prompts, cfg.warm_start)
  if cfg.updates.replay and processes.count() > 1:
    raise ConfigError(f"updates.replay = {cfg.updates.replay} with {processes.count()} processes: "
                      "allowed is 1. Fix: updates.replay=0, and updates.staleness=1 instead.")
  in_order = cfg.server.url or _in_order(cfg.rollout, cfg.mesh, cfg.dynamic_sampling.enabled)
  if cfg.updates.overlap and not separate and mesh.size > 1 and not in_order:
    raise ConfigError(
        f"updates.overlap = True on {mesh.size} devices that both train and sample: their "
        "collectives may deadlock. Fix: updates.overlap=False, or devices that only sample, as "
        "many as mesh.rollout says.")
  if cfg.rollout.shared_prefix:
    _check_shared_prefix(cfg.rollout, sampling if separate else mesh)
  if separate:
    _check_rows(sampled_rows, sampling.size, "mesh.rollout")
  elif sampling is not None and cfg.mesh.sequence > 1:
    _check_rows(sampled_rows, parallel.row_shards(sampling) * processes.count(),
                "mesh.data * mesh.fsdp * mesh.sequence")
  _check_rows(trained_rows, parallel.row_shards(mesh), "mesh.data * mesh.fsdp")


def check_memory(shapes, keys: dict[str, int]) -> None:
  """Refuses parameters that no memory here can hold, on which XLA would work for minutes first.

  Args:
    shapes: of all leaves, with their dtypes.
    keys: the config keys that the shapes follow from, and their values.

  Raises:
    ConfigError: naming the largest of `keys`.
  """
  total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
  devices = sum((device.memory_stats() or {}).get("bytes_limit", 0)
                for device in jax.local_devices() if device.platform != "cpu")
  available = processes.count() * (
      devices + os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
  if total > available:
    key = max(keys, key=lambda name: keys[name])
    raise ConfigError(
        f"{key} = {keys[key]}: the parameters need {total / 2**30:,.0f} GiB, and devices and "
        f"hosts have {available / 2**30:,.0f} GiB. Fix: a smaller {' or '.join(keys)}.")


def _in_order(rollout: RolloutConfig, mesh: MeshConfig, dynamic_sampling: bool) -> bool:
  """Returns whether overlap cannot deadlock: all devices get the programs of sampling and training
  in the same order, or the programs of sampling wait for no other device.

  One program that samples is enqueued before the updates. An engine of one device has no
  collectives. With one process, devices of `mesh.rollout` are the better way. A server's rows need
  no program here.
  """
  if processes.count() == 1:
    return False
  if rollout.slots:
    return rollout.engine_per_device and mesh.tensor == 1
  return not dynamic_sampling


def _check_processes(prompts: int, warm: WarmStartConfig) -> None:
  """Checks that groups and demonstrations divide over the processes."""
  counts = {"rollout.prompts": prompts}
  if warm.steps:
    counts["warm_start.batch_size"] = warm.batch_size
  for key, count in counts.items():
    if count % processes.count():
      raise ConfigError(f"{key} = {count} does not divide over {processes.count()} processes. "
                        f"Fix: a multiple of {processes.count()}.")


def _check_shared_prefix(rollout: RolloutConfig, mesh: Mesh) -> None:
  """Checks that an engine which shares prompts has one device of the `mesh` that samples."""
  tensor = mesh.shape["tensor"]
  devices = tensor if rollout.engine_per_device else mesh.size
  if devices > 1:
    alternative = "" if tensor > 1 else "rollout.engine_per_device=True, or "
    raise ConfigError(f"rollout.shared_prefix = True on {devices} devices that sample: "
                      f"allowed is 1. Fix: {alternative}rollout.shared_prefix=False.")


def check_heads(heads: int, mesh: MeshConfig) -> None:
  """Checks that the kv-heads of attention divide over what divides a row's tokens.

  Raises:
    ConfigError: they do not.
  """
  shards = mesh.sequence * mesh.tensor
  if mesh.sequence > 1 and heads % shards:
    raise ConfigError(
        f"mesh.sequence * mesh.tensor = {shards} does not divide the {heads} kv-heads of the "
        f"model, which attention divides over these devices. Fix: a product that divides {heads}.")


def _trained_rows(rollout: RolloutConfig, updates: UpdateConfig,
                  warm: WarmStartConfig) -> list[tuple[str, int]]:
  """Returns (name, rows) of everything that the training devices divide."""
  micro_rows = rollout.rows // updates.optimizer_batches // updates.micro_batches
  rows = [("rows of a micro-batch", micro_rows)]
  if rollout.slots:
    rows += [("rollout.slots", min(rollout.slots, rollout.rows))]
  if warm.steps:
    rows += [("rows of a warm-start micro-batch", warm.batch_size // warm.micro_batches)]
  return rows


def _sampled_rows(rollout: RolloutConfig) -> list[tuple[str, int]]:
  """Returns (name, rows) of everything that devices which only sample divide."""
  slots = [("rollout.slots", min(rollout.slots, rollout.rows))] if rollout.slots else []
  return [("rows of an iteration", rollout.rows), *slots]


def _check_rows(named_rows: list[tuple[str, int]], shards: int, axes: str) -> None:
  for name, rows in named_rows:
    if rows % shards:
      raise ConfigError(f"{name} = {rows} does not divide over {axes} = {shards} devices. "
                        f"Fix: a multiple of {shards}.")
