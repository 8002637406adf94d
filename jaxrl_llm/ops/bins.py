"""Rows laid one behind the other in bins: where each token stands, and the way there and back.

Bin n holds the rows n K .. n K + K - 1, in this order and without gaps, so that a device with whole
bins has whole rows and nothing crosses devices. Rows of length 0 take no place.

Shapes: R rows of L tokens, N = R / K bins of C tokens.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from jaxrl_llm.types import Bins


class Places(NamedTuple):
  """Where the tokens of rows stand in bins.

  Attributes:
    source: [N, C] int32, the column of the bin's K rows, flattened, that stands here; any one at
      padding.
    positions: [N, C] int32, of the token in its row; 0 at padding.
    segments: [N, C] int32, counted from 1 in a bin; 0 marks padding.
    column: [N, K L] int32, where each column of the bin's rows stands; any place for one after the
      row's end.
    filled: [R, L] bool, True before the row's end.
  """

  source: Int[Array, "N C"]
  positions: Int[Array, "N C"]
  segments: Int[Array, "N C"]
  column: Int[Array, "N KL"]
  filled: Bool[Array, "R L"]


def places(lengths: Int[Array, " R"], width: int, bins: Bins) -> Places:
  """Returns where rows of these lengths, in arrays [R, width], stand in their bins.

  Rows of a bin that are longer than it together are cut off at its end; the host's plan
  (training/packing.py) never makes such a bin.
  """
  sizes = lengths.reshape(-1, bins.rows)
  ends = jnp.cumsum(sizes, 1)
  starts = ends - sizes
  at = jnp.arange(bins.capacity)
  row = jnp.sum(at[:, None] >= ends[:, None], -1)  # [N, C]; K behind the last row
  held = row < bins.rows
  row = jnp.minimum(row, bins.rows - 1)
  positions = jnp.where(held, at - jnp.take_along_axis(starts, row, 1), 0)
  columns = jnp.minimum(starts[..., None] + jnp.arange(width), bins.capacity - 1)
  return Places(row * width + positions, positions, jnp.where(held, row + 1, 0),
                columns.reshape(len(sizes), -1), jnp.arange(width) < lengths[:, None])


def pack(x: Shaped[Array, "R L"], where: Places) -> Shaped[Array, "N C"]:
  """Returns the rows' entries in their bins; any entry at padding."""
  return jnp.take_along_axis(x.reshape(len(where.source), -1), where.source, 1)


def unpack(x: Shaped[Array, "N C"], where: Places) -> Shaped[Array, "R L"]:
  """Returns the bins' entries in their rows; 0 (False) after a row's end."""
  rows = jnp.take_along_axis(x, where.column, 1).reshape(where.filled.shape)
  return jnp.where(where.filled, rows, jnp.zeros((), x.dtype))
