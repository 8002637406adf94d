"""Rows of a batch in bins, and bins in micro-batches: planned on the host, followed by the devices.

A plan depends only on the rows' lengths. Its arrays have the same shapes whatever the lengths are,
so new data never recompile a program; micro-batches that the plan leaves empty are not computed.

Shapes: M micro-batches of N bins, K rows of a bin, C tokens of a bin, B rows of the batch.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Int

from jaxrl_llm import parallel
from jaxrl_llm.config import RolloutConfig, UpdateConfig
from jaxrl_llm.types import Bins, Rollout

# Empty rows cost elementwise work of [K, L] in each bin; with fewer places short rows waste tokens.
ROWS = 16


@struct.dataclass
class Packing:
  """The place of each row of a batch in bins.

  Attributes:
    rows: [M, N, K] int32, indices of rows; B where there is no row. Used micro-batches come first.
    count: scalar int32, how many micro-batches are used.
    bins: the sizes C and K.
    shared: [M, N, K] int32, see `Bins.shared`; None where rows share nothing.
  """

  rows: Int[Array, "M N K"]
  count: Int[Array, ""]
  bins: Bins
  shared: Int[Array, "M N K"] | None = None

  @property
  def bins_by_micro_batch(self) -> dict[str, Any]:
    """The arrays [M, N, ...]; devices that hold rows divide the bins of each micro-batch."""
    return {"rows": self.rows, "shared": self.shared}


class Prompts(NamedTuple):
  """The prompts by which rows are grouped: tokens [B, L] and the prompt's length [B]."""

  tokens: np.ndarray
  length: np.ndarray


@dataclasses.dataclass(frozen=True)
class Packer:
  """Packs batches whose rows have a common limit.

  Attributes:
    bins: the sizes of a bin.
    per_device: bins of a micro-batch on one device.
    devices: number of devices that hold rows.
    shared_prompts: whether the prompt of several rows is laid down once.
  """

  bins: Bins
  per_device: int
  devices: int
  shared_prompts: bool = False

  def pack(self, rollout: Rollout) -> Packing:
    """Returns the packing of the rows; waits for their lengths. Raises as `__call__`."""
    if not self.shared_prompts:
      return self(parallel.gather_host(rollout.length))
    lengths, *prompts = parallel.gather_host((rollout.length, rollout.tokens,
                                              rollout.prompt_length))
    return self(lengths, Prompts(*prompts))

  def __call__(self, lengths: np.ndarray, prompts: Prompts | None = None) -> Packing:
    """Returns the packing of rows with these lengths [B].

    Args:
      prompts: of the rows; only read where prompts are shared.

    Raises:
      ValueError: a row is longer than a bin.
    """
    lengths = np.asarray(lengths)
    if lengths.max(initial=0) > self.bins.capacity:
      longest = int(np.argmax(lengths))
      raise ValueError(
          f"row {longest} has {lengths[longest]} tokens, but a bin holds {self.bins.capacity}. "
                       "Fix: a capacity of the longest row's tokens.")
    steps, width = self._shape(len(lengths))
    prefix = np.zeros_like(lengths)
    units = [[row] for row in range(len(lengths))]
    if self.shared_prompts:
      units, prefix = _sharing(lengths, prompts, self.bins)
    bin_members = first_fit(_sizes(units, lengths, prefix), self.bins,
                            [len(unit) for unit in units])
    rows = np.full((steps * width, self.bins.rows), len(lengths), np.int32)
    shared = np.zeros_like(rows)
    for bin_index, members in enumerate(bin_members):
      rows_of_bin = [row for unit in members for row in units[unit]]
      rows[bin_index, :len(rows_of_bin)] = rows_of_bin
      copies = [row for unit in members for row in (len(lengths), *units[unit][1:])]
      shared[bin_index, :len(rows_of_bin)] = np.append(prefix, 0)[copies]
    return Packing(rows.reshape(steps, width, -1), np.int32(-(-len(bin_members) // width)),
                   self.bins,
                   shared.reshape(steps, width, -1) if self.shared_prompts else None)

  def abstract(self, rows: int) -> Packing:
    """Returns the shapes of the packing of a batch of so many rows."""
    steps, width = self._shape(rows)
    shape = jax.ShapeDtypeStruct((steps, width, self.bins.rows), jnp.int32)
    return Packing(shape, jax.ShapeDtypeStruct((), jnp.int32), self.bins,
                   shape if self.shared_prompts else None)

  def _shape(self, rows: int) -> tuple[int, int]:
    """Returns (M, N): room for each row in a separate bin."""
    width = min(self.per_device, -(-rows // self.devices)) * self.devices
    return -(-rows // width), width


def make_packer(updates: UpdateConfig, bin_tokens: int, rollout: RolloutConfig,
                mesh: Mesh) -> Packer | None:
  """Returns the packer of a run that trains on this mesh; None if it has no token budget."""
  if not updates.token_budget:
    return None
  shared, devices = updates.shared_prompts, parallel.row_shards(mesh)
  rows = max(ROWS, rollout.group_size) if shared else ROWS
  per_device = updates.token_budget // bin_tokens
  if shared and rollout.group_tokens <= bin_tokens:
    # Micro-batches of equal size: else the bins that the last one lacks are computed in vain.
    groups = -(-rollout.prompts // updates.optimizer_batches // devices)
    per_device = -(-groups // -(-groups // per_device))
  return Packer(Bins(bin_tokens, rows), per_device, devices, shared)


def first_fit(sizes: np.ndarray, bins: Bins, counts: Sequence[int] | None = None
              ) -> list[list[int]]:
  """Returns the items of each bin: the largest first, each into the first bin that has room.

  Equal sizes keep their order, so that equal arguments always make the same bins.

  Args:
    sizes: tokens of each item, none above a bin's capacity.
    counts: rows of each item, none above a bin's; None: 1.
  """
  counts = [1] * len(sizes) if counts is None else counts
  free_tokens = np.full(len(sizes), bins.capacity)
  free_rows = np.full(len(sizes), bins.rows)
  bin_members: list[list[int]] = [[] for _ in sizes]
  for unit in np.argsort(-sizes, kind="stable"):
    bin_index = int(np.argmax((free_tokens >= sizes[unit]) & (free_rows >= counts[unit])))
    free_tokens[bin_index] -= sizes[unit]
    free_rows[bin_index] -= counts[unit]
    bin_members[bin_index].append(int(unit))
  return [members for members in bin_members if members]


def _sharing(lengths: np.ndarray, prompts: Prompts, bins: Bins
             ) -> tuple[list[list[int]], np.ndarray]:
  """Returns (rows that lie together because they share a prompt, the tokens that they share [B]).

  The last token of a prompt is not shared: it predicts each row's own first token, so it begins
  what is the row's own. Rows with the same prompt that do not fit into one bin make several units.
  """
  same: dict[bytes, list[int]] = {}
  for row, (tokens, length) in enumerate(zip(prompts.tokens, prompts.length, strict=True)):
    same.setdefault(np.asarray(tokens[:length], np.int32).tobytes(), []).append(row)
  prefix = np.where(lengths > 0, prompts.length - 1, 0)
  units = []
  for rows in same.values():
    share = int(prefix[rows[0]])
    room = Bins(bins.capacity - share, bins.rows)
    units += [[rows[index] for index in unit]
              for unit in first_fit(lengths[rows] - prefix[rows], room)]
  return units, prefix


def _sizes(units: list[list[int]], lengths: np.ndarray, prefix: np.ndarray) -> np.ndarray:
  """Returns the tokens of units of rows, of which each lays down its shared prompt once."""
  return np.array([sum(lengths[unit] - prefix[unit]) + prefix[unit[0]] for unit in units])


def micro_batch(tree, packing: Packing, index, constrain):
  """Returns (the rows [N K, ...] of one micro-batch, spread over devices, and their Bins).

  Places without a row are 0 (False).

  Args:
    tree: whose leaves [B, ...] each device has wholly (`everywhere`).
    index: of the micro-batch; traced or not.
    constrain: lays an array out by its logical axes, as the model's.
  """
  row_index = packing.rows[index].reshape(-1)

  def gather(x):
    rows = jnp.take(x, row_index, axis=0, mode="fill", fill_value=0)
    return constrain(rows, ("rows", *(None,) * (x.ndim - 1)))

  bins = packing.bins
  if packing.shared is not None:
    shared = constrain(packing.shared[index].reshape(-1), ("rows",))
    bins = bins.replace(shared=shared)
  return jax.tree.map(gather, tree), bins


def everywhere(tree, constrain):
  """Returns the leaves with a copy on each device; they are small next to one layer's activations.
  """
  return jax.tree.map(lambda x: constrain(x, (None,) * x.ndim), tree)


def map_rows(run: Callable, tree, packing: Packing, constrain):
  """Returns the results [B, ...] of `run`, computed micro-batch by micro-batch.

  Args:
    run: (rows [N K, ...] of the tree, their Bins) -> pytree of [N K, ...].
    tree, constrain: see `micro_batch`; the leaves may lie on any devices.
  """
  rows = jax.tree.leaves(tree)[0].shape[0]
  take = functools.partial(micro_batch, everywhere(tree, constrain), packing, constrain=constrain)

  def scatter(x, new, row_index):
    return x.at[row_index].set(new, mode="drop")

  def body(index, out):
    row_index = packing.rows[index].reshape(-1)
    return jax.tree.map(functools.partial(scatter, row_index=row_index), out, run(*take(index)))

  shapes = jax.eval_shape(lambda: run(*take(0)))
  empty = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), shapes)
  return lax.fori_loop(0, packing.count, body, empty)
