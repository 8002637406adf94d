"""Grouped-query attention in plain JAX, with scores of all pairs of query and key.

Shapes: R rows, S tokens per row, T slots attended to, H heads, K kv-heads, d head width.
"""

import itertools

import jax
import jax.numpy as jnp

from jaxrl_llm.models import kv_cache

MAX_BLOCKS, MIN_BLOCK = 4, 96  # of `attend_earlier`: number of blocks, tokens in one block
# Name of what the backward pass of attention's kernel on a TPU reads, for checkpoint policies.
RESIDUALS = "attention"
TILE, LONG = 128, 1024  # in rows of LONG tokens and more, blocks end at multiples of TILE


def attend(queries, keys, values, visible):
  """Grouped-query attention with the softmax in f32: H / K query heads share a kv-head.

  Args:
    queries: [R, S, H, d].
    keys: [R, K, d, T]. A cache may have another dtype than the queries (`kv_cache.held`); products
      are then in the wider of the two, of int8 in that of the queries.
    values: [R, K, T, d], in the dtype of the keys.
    visible: [R, S, T] bool, True on the slots that a token attends to.

  Returns:
    [R, S, H, d] in the dtype of the queries. A token that sees no slot (padding) gets the mean of
    the values.

  Source: arXiv 2305.13245.
  """
  scores = _scores(queries, keys, visible)
  outputs = _mix(jax.nn.softmax(scores, -1), values, queries.dtype).astype(queries.dtype)
  return outputs.transpose(0, 3, 1, 2, 4).reshape(queries.shape)


def attend_earlier(queries, keys, values, visible):
  """Computes `attend` where no token sees a later column, in blocks of queries.

  Each block only reads the columns up to its own end, so that n blocks compute (n + 1) / 2n of all
  scores. The results equal `attend`'s up to rounding.

  Args:
    queries, keys, values, visible: as in `attend`, with T = S.
  """
  length = queries.shape[1]
  count = min(MAX_BLOCKS, max(1, length // MIN_BLOCK))
  tile = TILE if length >= LONG else 1
  edges = [length * i // count // tile * tile for i in range(count)] + [length]
  blocks = [attend(queries[:, a:b], keys[..., :b], values[:, :, :b], visible[:, a:b, :b])
            for a, b in itertools.pairwise(edges)]
  return jnp.concatenate(blocks, 1)


def attend_shared(queries, keys, values, visible, prefix: kv_cache.Prefix, first=None):
  """Computes `attend` over a row's own slots and its prompt, whose keys are read once for all its
  rows.

  Each of the two parts p gives its largest score m_p, z_p = sum exp(s - m_p) and
  y_p = sum exp(s - m_p) v. With m = max m_p the output is

    sum_p exp(m_p - m) y_p / sum_p exp(m_p - m) z_p

  Args:
    queries, keys, values, visible: as in `attend`.
    prefix: the prompts of the rows.
    first: [R, S] int32, the first position of its prompt that a token attends to; None: 0.
  """
  return with_prefix(_partial(queries, keys, values, visible), queries, prefix, first)


def with_prefix(part, queries, prefix: kv_cache.Prefix, first=None):
  """Returns `attend_shared` from its part over the rows' own slots.

  Args:
    part: (m, z, y) as in `attend_shared`, [R, K, H/K, S, ...] f32.
    first: as in `attend_shared`.
  """
  row_max, row_sum, row_out = part
  length = queries.shape[1]
  prompts, group = prefix.rows.shape
  group_queries = queries[prefix.rows].reshape(prompts, group * length, *queries.shape[2:])
  group_first = 0 if first is None else jnp.maximum(
      first[prefix.rows].reshape(prompts, group * length, 1), 0)
  group_visible = jnp.broadcast_to(prefix.positions[:, None] >= group_first,
                                   (prompts, group * length, prefix.positions.shape[1]))

  def by_row(x):
    """Converts [M, .., G S, ..] to [R, .., S, ..]."""
    return x.reshape(*x.shape[:3], group, length, -1)[prefix.prompt, :, :, prefix.lane]

  shared = _partial(group_queries, prefix.keys, prefix.values, group_visible)
  prefix_max, prefix_sum, prefix_out = map(by_row, shared)
  max_score = jnp.maximum(row_max, prefix_max)
  row_scale, prefix_scale = jnp.exp(row_max - max_score), jnp.exp(prefix_max - max_score)
  total = row_scale * row_sum + prefix_scale * prefix_sum
  out = (row_scale * row_out + prefix_scale * prefix_out) / total
  return out.astype(queries.dtype).transpose(0, 3, 1, 2, 4).reshape(queries.shape)


def _partial(queries, keys, values, visible):
  """Returns (largest score, sum of exp, sum of exp times values) over the given slots, in f32.

  Each is [R, K, H/K, S, ...]; `exp` is relative to the largest score.
  """
  scores = _scores(queries, keys, visible)
  top = jnp.max(scores, -1, keepdims=True)
  weights = jnp.exp(scores - top)
  total = jnp.sum(weights, -1, keepdims=True)
  return top, total, _mix(weights, values, queries.dtype, jnp.float32)


def _multiplied_out(x, dtype):
  """Returns (keys or values as a product takes them, their scale [R, K, .., ..] or None)."""
  return (x.values.astype(dtype), x.scale) if isinstance(x, kv_cache.Int8) else (x, None)


def _scores(queries, keys, visible):
  """Returns products of queries and keys, [R, K, H/K, S, T] f32; the lowest number where not
  visible.
  """
  rows, length, _, size = queries.shape
  keys, scale = _multiplied_out(keys, queries.dtype)
  kv_heads, slots = keys.shape[1], keys.shape[3]
  # The query heads of a kv-head are stacked along the length: a plain batched product is faster.
  heads_apart = (queries * size**-0.5).reshape(rows, length, kv_heads, -1, size)
  by_kv_head = heads_apart.transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, size)
  scores = jnp.einsum("rknd,rkdt->rknt", by_kv_head, keys, preferred_element_type=jnp.float32)
  scores = scores.reshape(rows, kv_heads, -1, length, slots)
  scores = scores if scale is None else scores * scale[:, :, None]
  return jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)


def _mix(weights, values, query_dtype, dtype=None):
  """Returns values [R, K, T, d] summed with weights [R, K, H/K, S, T]: [R, K, H/K, S, d].

  Args:
    query_dtype: dtype of the queries.
    dtype: of the sum; None: of the product.
  """
  values, scale = _multiplied_out(values, query_dtype)
  weights = weights if scale is None else weights * scale.swapaxes(2, 3)[:, :, None]
  weights = weights.astype(jnp.promote_types(query_dtype, values.dtype))
  rows, kv_heads, per, length, slots = weights.shape
  outputs = jnp.einsum("rknt,rktd->rknd", weights.reshape(rows, kv_heads, -1, slots), values,
                       preferred_element_type=dtype)
  return outputs.reshape(rows, kv_heads, per, length, -1)
