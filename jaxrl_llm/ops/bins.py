"""Packs rows one after another into bins: the position of each token, and the way there and back.

Bin n holds the rows n K .. n K + K - 1, in this order and without gaps, so that a device that holds
complete bins holds complete rows and nothing crosses devices. Rows of length 0 take no place.

Shapes: R rows of L tokens, N = R / K bins of C tokens.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Shaped

from jaxrl_llm.types import Bins

NOTHING = -1  # a segment that no token has

class Places(NamedTuple):
  """Places of the rows' tokens in bins.

  Attributes:
    source: [N, C] int32, the column of the bin's K rows, flattened, that is here; any one at
      padding.
    positions: [N, C] int32, of the token in its row; 0 at padding.
    segments: [N, C] int32, above 0 and different for each row of a bin; what several rows share is
      a separate segment. 0 marks padding.
    shared: [N, C] int32, the segment of the tokens that the row shares with others, which its
      further tokens attend to in addition to their own; NOTHING elsewhere. None where bins share
      nothing.
    column: [N, K L] int32, where each column of the bin's rows is in the bin; any place for a
      column after the row's end.
    filled: [R, L] bool, True before the row's end.
  """

  source: Int[Array, "N C"]
  positions: Int[Array, "N C"]
  segments: Int[Array, "N C"]
  shared: Int[Array, "N C"] | None
  column: Int[Array, "N KL"]
  filled: Bool[Array, "R L"]


def places(lengths: Int[Array, " R"], width: int, bins: Bins) -> Places:
  """Returns where rows of these lengths, in arrays [R, width], are in their bins.

  Rows of a bin that are longer than it together are cut off at its end; the host's plan
  (training/packing.py) never makes such a bin.
  """
  shape = (-1, bins.rows)
  left_out = None if bins.shared is None else bins.shared.reshape(shape)
  sizes = lengths.reshape(shape) - (0 if left_out is None else left_out)
  ends = jnp.cumsum(sizes, 1)
  starts = ends - sizes
  slot = jnp.arange(bins.capacity)
  row = jnp.sum(slot[:, None] >= ends[:, None], -1)  # [N, C]; K after the last row
  is_occupied = row < bins.rows
  row = jnp.minimum(row, bins.rows - 1)

  def by_slot(x):
    return jnp.take_along_axis(x, row, 1)

  positions = slot - by_slot(starts)
  segments, shared = row + 1, None
  column = starts[..., None] + jnp.arange(width)
  if left_out is not None:
    positions += by_slot(left_out)
    first, prefix = _sharers(left_out)
    in_prefix = positions < by_slot(prefix)
    segments = jnp.where(in_prefix, bins.rows + row, row) + 1
    sees = (by_slot(prefix) > 0) & ~in_prefix & is_occupied
    shared = jnp.where(sees, bins.rows + by_slot(first) + 1, NOTHING)
    prefix_column = jnp.take_along_axis(starts, first, 1)[..., None] + jnp.arange(width)
    is_suffix = jnp.arange(width) >= left_out[..., None]
    column = jnp.where(is_suffix, column - left_out[..., None], prefix_column)
  positions = jnp.where(is_occupied, positions, 0)
  column = jnp.minimum(column, bins.capacity - 1).reshape(len(sizes), -1)
  return Places(row * width + positions, positions, jnp.where(is_occupied, segments, 0), shared,
                column,
                jnp.arange(width) < lengths[:, None])


def _sharers(left_out: Int[Array, "N K"]) -> tuple[Int[Array, "N K"], Int[Array, "N K"]]:
  """Returns (the row that holds the beginning of each row, the tokens that it shares of it)."""
  row = jnp.arange(left_out.shape[1])
  first = lax.cummax(jnp.where(left_out > 0, 0, row), axis=1)
  following = jnp.pad(left_out[:, 1:], ((0, 0), (0, 1)))
  return first, jnp.maximum(left_out, following)


def weights(where: Places) -> Int[Array, "N C"]:
  """Returns how many rows the token at each place belongs to; 0 at padding."""
  if where.shared is None:
    return (where.segments > 0).astype(jnp.int32)
  bins = jnp.arange(len(where.column))[:, None]
  return jnp.zeros_like(where.source).at[bins, where.column].add(
      where.filled.reshape(where.column.shape))


def pack(x: Shaped[Array, "R L"], where: Places) -> Shaped[Array, "N C"]:
  """Returns the rows' entries in their bins; any entry at padding."""
  return jnp.take_along_axis(x.reshape(len(where.source), -1), where.source, 1)


def unpack(x: Shaped[Array, "N C"], where: Places) -> Shaped[Array, "R L"]:
  """Returns the bins' entries in their rows; 0 (False) after a row's end."""
  rows = jnp.take_along_axis(x, where.column, 1).reshape(where.filled.shape)
  return jnp.where(where.filled, rows, jnp.zeros((), x.dtype))
