"""Attention of full rows block by block: no array of [tokens, tokens] exists, at any length.

The softmax is taken online: each query keeps the largest score so far, and rescales what it has
summed when a block brings a larger one. The backward pass computes the scores of a block again from
the logarithm of each query's sum. Blocks of keys after a block of queries are skipped, and so are
blocks of other segments.

Source: arXiv 2205.14135.

Shapes: R rows, K kv-heads, G query heads of a kv-head, S tokens, d head width, n blocks of B
tokens.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

BLOCK = 512
MASK_VALUE = jnp.finfo(jnp.float32).min


def attend_blocks(queries, keys, values, segments, shared=None, positions=None,
                  block: int = BLOCK, window: int = 0):
  """Attention of each token to its segment up to itself, in f32 inside.

  Args:
    queries: [R, K, G, S, d], not scaled.
    keys, values: [R, K, S, d].
    segments: [R, S] int32, 0 at padding. A segment's tokens are neighbours in order.
    shared: [R, S] int32, an additional segment that a token may attend to; None: none.
    positions: [R, S] int32, of each token in its segment, needed with a window.
    block: B; shorter rows are one block.
    window: positions that a token attends to, its own among them; 0: all.

  Returns:
    [R, K, G, S, d] in the dtype of the queries; 0 at padding.
  """
  length, size = queries.shape[-2:]
  block = min(block, length)
  queries = padded(queries * size**-0.5, 3, block)
  segment_ids = [segments, segments if shared is None else shared]
  segment_ids += [positions, positions - window + 1] if window else []
  segment_ids = tuple(padded(x, 1, block) for x in segment_ids)
  out = _attend(block, queries, padded(keys, 2, block), padded(values, 2, block), segment_ids)
  return out[..., :length, :]


def padded(x, axis: int, multiple: int):
  """Returns `x` padded with zeros, so that the axis is a multiple."""
  extra = -x.shape[axis] % multiple
  return x if extra == 0 else lax.pad(x, jnp.zeros((), x.dtype), [
      (0, extra if i == axis else 0, 0) for i in range(x.ndim)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(block, queries, keys, values, segments):
  return _forward(block, queries, keys, values, segments)[0]


def _forward(block, queries, keys, values, segments):
  """Returns (output, what the backward pass reads)."""

  def scan_query_block(i):
    q_block = _take(queries, i, block)

    def add(j, mask, carry):
      row_max, row_sum, acc = carry
      scores = _scores(q_block, keys, mask, j, block)
      new_max = jnp.maximum(row_max, jnp.max(scores, -1, keepdims=True))
      weights = jnp.where(scores > MASK_VALUE, jnp.exp(scores - new_max), 0)
      scale = jnp.exp(row_max - new_max)
      acc = acc * scale + _einsum_f32("rkgst,rktd->rkgsd", weights, _take(values, j, block))
      return new_max, row_sum * scale + jnp.sum(weights, -1, keepdims=True), acc

    shape = q_block.shape
    start = (jnp.full((*shape[:-1], 1), MASK_VALUE), jnp.zeros((*shape[:-1], 1)), jnp.zeros(shape))
    row_max, row_sum, acc = lax.fori_loop(0, i + 1,
                                          _skip_masked_blocks(add, i, None, segments, block), start)
    # Of a query that sees nothing the sum is infinite, so that its weights are 0.
    logsumexp = jnp.where(row_sum > 0, row_max + jnp.log(jnp.where(row_sum > 0, row_sum, 1)),
                          jnp.inf)
    acc = acc / jnp.where(row_sum > 0, row_sum, 1)
    return acc.astype(queries.dtype), logsumexp[..., 0]

  outputs, log_totals = lax.map(scan_query_block, jnp.arange(queries.shape[3] // block))
  outputs, log_totals = _merge_blocks(outputs), _merge_blocks(log_totals[..., None])[..., 0]
  return outputs, (queries, keys, values, segments, outputs, log_totals)


def _backward(block, residuals, gradient):
  queries, keys, values, segments, outputs, log_totals = residuals
  # d softmax: weights (d weights - sum of weights d weights), whose sum is output . d output
  delta = jnp.sum(gradient.astype(jnp.float32) * outputs.astype(jnp.float32), -1)
  blocks = queries.shape[3] // block

  def scan_key_block(d_queries, j):
    k, v = _take(keys, j, block), _take(values, j, block)

    def add(i, mask, carry):
      d_queries, d_keys, d_values = carry
      q, g = _take(queries, i, block), _take(gradient, i, block)
      scores = _scores(q, keys, mask, j, block)
      weights = jnp.exp(scores - _take(log_totals[..., None], i, block))
      d_values += _einsum_f32("rkgst,rkgsd->rktd", weights, g)
      d_weights = _einsum_f32("rkgsd,rktd->rkgst", g, v)
      d_scores = weights * (d_weights - _take(delta[..., None], i, block))
      d_keys += _einsum_f32("rkgst,rkgsd->rktd", d_scores, q)
      change = _take(d_queries, i, block) + _einsum_f32("rkgst,rktd->rkgsd", d_scores, k)
      return lax.dynamic_update_slice_in_dim(d_queries, change, i * block, 3), d_keys, d_values

    zeros = jnp.zeros(k.shape)
    body = _skip_masked_blocks(add, None, j, segments, block)
    d_queries, d_keys, d_values = lax.fori_loop(j, blocks, body, (d_queries, zeros, zeros))
    return d_queries, (d_keys, d_values)

  d_queries, (d_keys, d_values) = lax.scan(scan_key_block, jnp.zeros(queries.shape),
                                           jnp.arange(blocks))
  d_keys, d_values = _merge_blocks(d_keys), _merge_blocks(d_values)
  return (d_queries.astype(queries.dtype), d_keys.astype(keys.dtype),
          d_values.astype(values.dtype), None)


_attend.defvjp(_forward, _backward)


def _take(x, i, block: int):
  """Returns block i of the tokens, the axis before the last."""
  return lax.dynamic_slice_in_dim(x, i * block, block, x.ndim - 2)


def _merge_blocks(x):
  """Converts [n, R, .., B, d] to [R, .., S, d]."""
  x = jnp.moveaxis(x, 0, -3)
  return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _einsum_f32(axes: str, lhs, rhs):
  """Returns an einsum in the dtype of `rhs`, summed in f32."""
  return jnp.einsum(axes, lhs.astype(rhs.dtype), rhs, preferred_element_type=jnp.float32)


def _skip_masked_blocks(add, i, j, segments, block: int):
  """Returns the body of a loop over blocks, which skips fully masked blocks.

  Args:
    add: (index of the loop, [R, B, B] bool what queries see, carry) -> carry.
    i, j: the blocks of queries and of keys; None for the one that the loop goes over.
  """

  def body(index, carry):
    mask = _block_mask(segments, index if i is None else i, index if j is None else j, block)
    return lax.cond(jnp.any(mask), functools.partial(add, index, mask), lambda state: state, carry)

  return body


def _scores(queries, keys, mask, j, block: int):
  """Returns [R, K, G, B, B] f32 of a block of queries and the keys of block j."""
  scores = _einsum_f32("rkgsd,rktd->rkgst", queries, _take(keys, j, block))
  return jnp.where(mask[:, None, None], scores, MASK_VALUE)


def _block_mask(segments, i, j, block: int):
  """Returns [R, B, B] bool: what the queries of block i see of the keys of block j.

  `segments`: the segment of each token, and the additional one that it may attend to; with a
  window, its position and the first one that it attends to.
  """
  def block_slice(x, index):
    return lax.dynamic_slice_in_dim(x, index * block, block, 1)

  q_segments, q_prefix = (block_slice(x, i)[..., None] for x in segments[:2])
  kv_segments = block_slice(segments[0], j)[:, None]
  columns = jnp.arange(block)
  not_later = i * block + columns[:, None] >= j * block + columns
  mask = not_later & ((q_segments == kv_segments) | (q_prefix == kv_segments)) & (q_segments > 0)
  if len(segments) == 2:
    return mask
  positions, first = segments[2:]
  return mask & (block_slice(positions, j)[:, None] >= block_slice(first, i)[..., None])
