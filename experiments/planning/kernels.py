"""Kernels of attention, by formula: a jaxpr shows the grid of a kernel, but not which blocks of it
are skipped, and a compiled text shows each operand once, but not how often a kernel reads it.

A row of S tokens has S (S + 1) / 2 pairs of a token and an earlier one or itself, for each head. A
product over the pairs takes 2 d operations for each, d being the head's width. On a TPU each block
that is not skipped reads two blocks from memory: of keys and values, or in the backward pass for
these, of queries and gradients. On a GPU they are assumed to stay in its cache. With a sliding
window the grid has fewer blocks of keys than of queries: a row's pairs are then those of a window
that ends where such a block does, up to a block more than there are. Of a row of several segments,
a TPU's kernel skips the blocks that no segment reaches into (`live_pairs`).

Source: own derivation, from the kernels' loops.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.planning.model_flops import pairs_of
from jaxrl_llm.models import attention_kernels, live_attention

# Products over the pairs, by the beginning of the kernel's name: scores and output; with their
# gradients, scores, d weights, and d keys and d values, or d queries, or all three.
_PRODUCTS = {
    "splash_mha_fwd": 2, "splash_mha_dkv": 4, "splash_mha_dq": 3,
    "mha_forward": 2, "mha_backward": 7,
    "dot_product_attention_fwd": 2, "dot_product_attention_bwd": 5,
}


# Operand of the kernel of live blocks, of which the first is the size of its grid. Arrays of the
# new tokens follow, and as many of the cache: keys and values, with int8 their scales, too.
_LIVE_QUERIES = 5


class Cost(NamedTuple):
  """Operations of a call, and bytes that it reads in addition to each operand once."""

  operations: float
  read_again: float


def attention(eqn, live: float = 1.0) -> Cost | None:
  """Returns the cost of an equation that calls one of the kernels, by all rows and heads; None for
  another equation.

  Args:
    live: share of the cache's columns that the kernel of live blocks reads, or of a row's pairs
      that are in blocks which a TPU's kernel does not skip.
  """
  name = _name(eqn)
  if name.startswith(live_attention.NAME):
    return _live(eqn, live)
  products = next((count for start, count in _PRODUCTS.items() if name.startswith(start)), None)
  if products is None:
    return None
  queries = next(x.aval for x in eqn.invars if len(x.aval.shape) >= 3 and x.aval.shape[-1] > 1
                 and x.aval.dtype.kind not in "iub")
  if name.startswith("splash_mha_dkv") and any(
      len(x.aval.shape) > len(queries.shape) for x in eqn.outvars):
    products = 5  # fused: outputs have d queries by each block of keys
  heads_first = name.startswith("splash")
  length, size = queries.shape[-2 if heads_first else -3], queries.shape[-1]
  heads = math.prod(queries.shape) // (length * size)  # of all rows
  if not heads_first:
    return Cost(2.0 * products * size * heads * pairs_of(length, 0), 0.0)
  blocks = length // min(length, attention_kernels.LARGEST_BLOCK)
  wide = eqn.params["grid_mapping"].grid[-1]  # blocks of keys for one of queries
  pairs = heads * pairs_of(length, (wide - 1) * length // blocks if wide < blocks else 0)
  steps = heads * pairs_of(blocks, wide)
  once = 2 * math.prod(queries.shape)
  share = live if wide == blocks else 1.0
  again = 2 * share * steps * (length // blocks) * size - once
  return Cost(2.0 * products * size * pairs * share, max(0.0, again) * queries.dtype.itemsize)


def live_pairs(bins: Sequence[Sequence[int]], capacity: int) -> float:
  """Returns the share of the pairs of packed rows, of a token and an earlier one or itself, that
  are in blocks which the kernel does not skip.

  Args:
    bins: the lengths of the segments in each.
    capacity: of a bin, in tokens.
  """
  block = min(capacity, attention_kernels.LARGEST_BLOCK)
  count = -(-capacity // block)
  of_blocks = np.where(np.eye(count, dtype=bool), block * (block + 1) / 2, block**2)
  shares = []
  for lengths in bins:
    segments = np.zeros(count * block)
    segments[:sum(lengths)] = np.repeat(np.arange(len(lengths)) + 1, lengths)
    starts, ends = segments[::block, None], segments[block - 1::block]
    live = np.tril((starts == ends) | np.eye(count, dtype=bool))
    shares.append(np.sum(of_blocks * live) / np.sum(np.tril(of_blocks)))
  return float(np.mean(shares))


def _live(eqn, share: float) -> Cost:
  """A step's attention to live blocks. The text shows keys and values read and written as a whole;
  the kernel reads the live blocks, and reads and writes a tile of columns for each row.
  """
  queries, *others = (x.aval for x in eqn.invars[_LIVE_QUERIES:])
  cached = others[len(others) // 2:]
  listed = eqn.invars[1].aval.shape[0]  # blocks at most, of all rows: fewer with a window
  cache_bytes = sum(math.prod(x.shape) * x.dtype.itemsize for x in cached)
  rows, heads, columns, _ = cached[0].shape
  block = live_attention.block_of(columns, cached[0].dtype)
  share = min(share, listed * block / (rows * columns))
  # columns of scales lie along the lanes of f32
  tiles = sum(x.shape[3] * live_attention.TILE_BYTES if x.shape[2] == columns
              else x.shape[2] * live_attention.LANES * x.dtype.itemsize for x in cached)
  return Cost(4.0 * math.prod(queries.shape) * columns * share,
              (share - 2.0) * cache_bytes + rows * heads * tiles)


def _name(eqn) -> str:
  """Returns the kernel's name, or the primitive's."""
  if eqn.primitive.name != "pallas_call":
    return eqn.primitive.name
  name_or_info = eqn.params.get("name_and_src_info", eqn.params.get("name"))
  return str(getattr(name_or_info, "name", name_or_info))
