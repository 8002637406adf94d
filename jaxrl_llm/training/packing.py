"""Rows of a batch in bins, and bins in micro-batches: planned on the host, followed by the devices.

A plan depends on the rows' lengths alone. Its arrays have the same shapes whatever the lengths are,
so new data never recompile a program; micro-batches that the plan leaves empty are not computed.

Shapes: M micro-batches of N bins, K rows of a bin, C tokens of a bin, B rows of the batch.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Int

from jaxrl_llm import parallel
from jaxrl_llm.config import Config
from jaxrl_llm.types import Bins

# Empty rows cost elementwise work of [K, L] in each bin; with fewer places short rows waste tokens.
ROWS = 16


@struct.dataclass
class Packing:
  """Where each row of a batch lies.

  Attributes:
    rows: [M, N, K] int32, indices of rows; B where nothing lies. Used micro-batches come first.
    count: scalar int32, how many micro-batches are used.
    bins: the sizes C and K.
  """

  rows: Int[Array, "M N K"]
  count: Int[Array, ""]
  bins: Bins


@dataclasses.dataclass(frozen=True)
class Packer:
  """Packs batches whose rows have a common limit.

  Attributes:
    bins: the sizes of a bin.
    per_device: bins of a micro-batch on one device.
    devices: that hold rows.
  """

  bins: Bins
  per_device: int
  devices: int

  def __call__(self, lengths: Int[Array, " B"]) -> Packing:
    """Returns the packing of rows with these lengths; waits for them.

    Raises:
      ValueError: a row is longer than a bin.
    """
    lengths = np.asarray(parallel.gather_host(lengths))
    steps, width = self._shape(len(lengths))
    found = first_fit(lengths, self.bins)
    rows = np.full((steps * width, self.bins.rows), len(lengths), np.int32)
    for at, members in enumerate(found):
      rows[at, :len(members)] = members
    return Packing(rows.reshape(steps, width, -1), np.int32(-(-len(found) // width)), self.bins)

  def abstract(self, rows: int) -> Packing:
    """Returns the shapes of the packing of a batch of so many rows."""
    steps, width = self._shape(rows)
    shape = jax.ShapeDtypeStruct((steps, width, self.bins.rows), jnp.int32)
    return Packing(shape, jax.ShapeDtypeStruct((), jnp.int32), self.bins)

  def most(self, rows: int) -> int:
    """Returns the micro-batches of a batch in which no two rows fit into one bin."""
    return self._shape(rows)[0]

  def _shape(self, rows: int) -> tuple[int, int]:
    """(M, N): room for each row in a bin of its own."""
    width = min(self.per_device, -(-rows // self.devices)) * self.devices
    return -(-rows // width), width


def make_packer(cfg: Config, mesh: Mesh) -> Packer | None:
  """Returns the packer of a run that trains on this mesh; None if it has no token budget."""
  if not cfg.updates.token_budget:
    return None
  return Packer(Bins(cfg.bin_tokens, ROWS), cfg.updates.token_budget // cfg.bin_tokens,
                mesh.shape["data"] * mesh.shape["fsdp"])


def first_fit(lengths: np.ndarray, bins: Bins) -> list[list[int]]:
  """Returns the rows of each bin: the longest first, each into the first bin that has room.

  Equal lengths keep their order, so that equal lengths [B] always make the same bins.

  Raises:
    ValueError: a row is longer than a bin.
  """
  if lengths.max(initial=0) > bins.capacity:
    at = int(np.argmax(lengths))
    raise ValueError(f"row {at} has {lengths[at]} tokens, but a bin holds {bins.capacity}. "
                     "Fix: a capacity of the longest row's tokens.")
  free = np.full(len(lengths), bins.capacity)
  found: list[list[int]] = [[] for _ in lengths]
  held = np.zeros(len(lengths), int)
  for row in np.argsort(-lengths, kind="stable"):
    at = int(np.argmax((free >= lengths[row]) & (held < bins.rows)))
    free[at] -= lengths[row]
    held[at] += 1
    found[at].append(int(row))
  return [members for members in found if members]


def micro_batch(tree, packing: Packing, index, constrain):
  """Returns the rows [N K, ...] of one micro-batch, empty ones as 0 (False), spread over devices.

  Args:
    tree: whose leaves [B, ...] each device has wholly (`everywhere`).
    index: of the micro-batch; traced or not.
    constrain: lays an array out by its logical axes, as the model's.
  """
  at = packing.rows[index].reshape(-1)

  def taken(x):
    rows = jnp.take(x, at, axis=0, mode="fill", fill_value=0)
    return constrain(rows, ("rows", *(None,) * (x.ndim - 1)))

  return jax.tree.map(taken, tree)


def everywhere(tree, constrain):
  """Returns the leaves with a copy on each device; they are small beside one layer's activations.
  """
  return jax.tree.map(lambda x: constrain(x, (None,) * x.ndim), tree)


def map_rows(run: Callable, tree, packing: Packing, constrain):
  """Returns the results [B, ...] of `run`, computed micro-batch by micro-batch.

  Args:
    run: rows [N K, ...] of the tree -> pytree of [N K, ...].
    tree, constrain: see `micro_batch`; the leaves may lie on any devices.
  """
  rows = jax.tree.leaves(tree)[0].shape[0]
  take = functools.partial(micro_batch, everywhere(tree, constrain), packing, constrain=constrain)

  def put(x, new, at):
    return x.at[at].set(new, mode="drop")

  def body(index, found):
    at = packing.rows[index].reshape(-1)
    return jax.tree.map(functools.partial(put, at=at), found, run(take(index)))

  shapes = jax.eval_shape(lambda: run(take(0)))
  empty = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), shapes)
  return lax.fori_loop(0, packing.count, body, empty)
