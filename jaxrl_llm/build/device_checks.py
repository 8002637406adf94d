"""Refuses configs whose rows do not divide over the devices, or whose threads could deadlock."""

import jax
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, ConfigError
from jaxrl_llm.parallel import processes


def check(cfg: Config, mesh: Mesh, sampling: Mesh | None = None) -> None:
  """Checks that rows divide over the devices that hold them, and that overlap cannot deadlock.

  Groups must divide over processes, too, because each process has whole ones. Two threads that
  launch programs with collectives on the same devices may wait for each other forever: each device
  runs its programs in the order in which it received them, and the order may differ between
  devices.

  Args:
    mesh: devices that train.
    sampling: devices that sample, of this process; None: the same.

  Raises:
    ConfigError: naming the rows that do not divide; updates.overlap on several devices that both
      train and sample; rollout.shared_prefix on several devices that sample.
  """
  apart = sampling is not None and parallel.apart(sampling, mesh)
  _check_processes(cfg)
  if cfg.updates.overlap and not apart and mesh.size > 1 and not _in_order(cfg):
    raise ConfigError(
        f"updates.overlap = True on {mesh.size} devices that both train and sample: their "
        "collectives may deadlock. "
        f"Fix: {_rollout_devices_fix(cfg, mesh.size)}updates.overlap=False.")
  if cfg.rollout.shared_prefix:
    _check_shared_prefix(cfg, sampling if apart else mesh)
  if apart:
    _check_rows(_sampled_rows(cfg), sampling.size, "mesh.rollout")
  elif sampling is not None and cfg.mesh.sequence > 1:
    _check_rows(_sampled_rows(cfg), parallel.row_shards(sampling) * processes.count(),
                "mesh.data * mesh.fsdp * mesh.sequence")
  _check_rows(_trained_rows(cfg), parallel.row_shards(mesh), "mesh.data * mesh.fsdp")


def _in_order(cfg: Config) -> bool:
  """Whether all devices get the programs of sampling and training in the same order, or those of
  sampling wait for no other device.

  One program that samples is enqueued before the updates. An engine of one device has no
  collectives. With one process, devices of `mesh.rollout` are the better way. A server's rows need
  no program here.
  """
  if cfg.server.url:
    return True
  if processes.count() == 1:
    return False
  if cfg.rollout.slots:
    return cfg.rollout.engine_per_device and cfg.mesh.tensor == 1
  return not cfg.dynamic_sampling.enabled


def _check_processes(cfg: Config) -> None:
  """Checks that groups and demonstrations divide over the processes."""
  counts = {"rollout.prompts": cfg.rollout.prompts}
  if cfg.warm_start.steps:
    counts["warm_start.batch_size"] = cfg.warm_start.batch_size
  for key, count in counts.items():
    if count % processes.count():
      raise ConfigError(f"{key} = {count} does not divide over {processes.count()} processes. "
                        f"Fix: a multiple of {processes.count()}.")


def _check_shared_prefix(cfg: Config, mesh: Mesh) -> None:
  """Checks that an engine which shares prompts has one device of the `mesh` that samples."""
  tensor = mesh.shape["tensor"]
  devices = tensor if cfg.rollout.engine_per_device else mesh.size
  if devices > 1:
    other = "" if tensor > 1 else "rollout.engine_per_device=True, or "
    raise ConfigError(f"rollout.shared_prefix = True on {devices} devices that sample: "
                      f"allowed is 1. Fix: {other}rollout.shared_prefix=False.")


def check_heads(cfg: Config) -> None:
  """Checks that attention's heads divide over what divides a row's tokens; `cfg` has all shapes.

  Raises:
    ConfigError: they do not.
  """
  heads, shards = cfg.model.num_kv_heads, cfg.mesh.sequence * cfg.mesh.tensor
  if cfg.mesh.sequence > 1 and heads % shards:
    raise ConfigError(
        f"mesh.sequence * mesh.tensor = {shards} does not divide the {heads} kv-heads of the "
        f"model, which attention divides over these devices. Fix: a product that divides {heads}.")


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
    whole = mesh.sequence * mesh.tensor
    return (training % (mesh.fsdp * whole) == 0 and _divide(_sampled_rows(cfg), sampling) and
            _divide(_trained_rows(cfg), training // whole))

  def distance(sampling: int) -> int:
    return abs(2 * sampling - count)

  alone = cfg.rollout.shared_prefix and not cfg.rollout.engine_per_device
  most = 1 if alone else count - 1
  found = [sampling for sampling in range(1, most + 1) if fits(sampling)]
  if not found or jax.process_count() > 1:
    return ""
  data = "" if mesh.data < 0 else " with mesh.data=-1"
  return f"mesh.rollout={min(found, key=distance)}{data}, or "
