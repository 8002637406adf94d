"""Arrays from host to devices and back, and between sets of devices."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxrl_llm.parallel.layouts import rows


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
