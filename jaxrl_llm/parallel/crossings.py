"""Arrays from host to devices and back, and between sets of devices."""

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

from jaxrl_llm.parallel.layouts import rows
from jaxrl_llm.parallel.meshes import of_process, row_shards, spans_processes


def transfer(tree, shardings):
  """Returns the arrays laid out by `shardings`, a prefix of the tree, on any devices.

  An array that has its layout already is not copied. No program with collectives is launched, so
  any thread may call this.
  """
  return jax.device_put(tree, shardings)


def held_by(tree, mesh: Mesh):
  """Returns the arrays on only the devices of `mesh`, from what they hold; nothing is copied.

  Args:
    tree: arrays of a larger mesh with the same axes, not divided over the axes that divide rows.
  """

  def local_array(x):
    shards = {shard.device: shard.data for shard in x.addressable_shards}
    layout = NamedSharding(mesh, x.sharding.spec)
    return jax.make_array_from_single_device_arrays(
        x.shape, layout, [shards[device] for device in mesh.devices.flat])

  return jax.tree.map(local_array, tree)


def to_global(tree, mesh: Mesh):
  """Returns arrays whose leading axis spans all processes, from each process's rows (numpy)."""

  def spread(x):
    return jax.make_array_from_process_local_data(rows(mesh), np.asarray(x))

  return jax.tree.map(spread, tree)


def spread(tree, mesh: Mesh):
  """Returns the arrays of all processes as one; each has those rows on its own devices.

  It neither waits for the arrays nor sends them to another process.

  Args:
    tree: arrays [rows, ...] on any devices of this process; as many rows in each process.
    mesh: of all processes.
  """
  if not spans_processes(mesh):
    return transfer(tree, rows(mesh))
  local = of_process(mesh)

  def spread_array(x):
    x = jax.device_put(x, rows(local))
    shards = {shard.device: shard.data for shard in x.addressable_shards}
    global_shape = (x.shape[0] * row_shards(mesh) // row_shards(local), *x.shape[1:])
    return jax.make_array_from_single_device_arrays(
        global_shape, rows(mesh), [shards[device] for device in local.devices.flat])

  return jax.tree.map(spread_array, tree)


def local_rows(tree):
  """Returns this process's rows of arrays that are divided by rows, as numpy; waits for them."""

  def mine(x):
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
      return np.asarray(jax.device_get(x))
    shards = {shard.index[0].start or 0: shard.data for shard in x.addressable_shards}
    return np.concatenate(jax.device_get([shards[begin] for begin in sorted(shards)]))

  return jax.tree.map(mine, tree)


def gather_host(tree):
  """Returns numpy arrays; waits for the computation that makes the device arrays.

  If an array is divided over processes, each gets the full array: then all must call this, in the
  same order as their programs.
  """

  def gather(x):
    spans = isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated)
    return multihost_utils.process_allgather(x, tiled=True) if spans else x

  return jax.device_get(jax.tree.map(gather, tree))
