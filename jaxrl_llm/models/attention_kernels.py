"""JAX's own kernels of attention in full rows.

Shapes and results are as in `blocked_attention.attend_blocks`. Of the libraries, JAX's kernels
serve grouped heads, segments and a backward pass on both TPU (splash) and GPU (triton) without
another dependency; cuDNN's is the fastest on a GPU, but in JAX's public interface it knows only
lengths, so that it does not serve packed rows. The kernels are imported where they are used: that
takes .3 s.
"""

import functools

import jax
import jax.numpy as jnp

from jaxrl_llm.models.attention import RESIDUALS
from jaxrl_llm.models.blocked_attention import padded

LANES = 128  # of a TPU: head widths and blocks are multiples of it
LARGEST_BLOCK, LONGEST_FUSED = 512, 16384  # tokens of a block, and of rows with one backward kernel


def splash(queries, keys, values, segments, interpret: bool = False, window: int = 0):
  """Attention on a TPU. Head widths and lengths are padded with zeros to full tiles.

  Args:
    window: tokens that a token attends to, itself among them, whose positions are neighbours; 0:
      all.
    interpret: runs the kernel's operations one by one on any device, for tests.
  """
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

  groups, length, size = queries.shape[2:]
  block = min(LARGEST_BLOCK, -(-length // LANES) * LANES)
  queries = (queries * size**-0.5).reshape(queries.shape[0], -1, length, size)
  tiles = [padded(padded(x, 2, block), 3, LANES) for x in (queries, keys, values)]
  kernel = _splash_kernel(*tiles[0].shape[1:3], block, interpret, window)

  def of_row(ids, *tiles):
    # With other blocks for each row, several rows would be a loop of kernels.
    attend_row = kernel if window or len(queries) > 1 else _of_segments(kernel, ids, block)
    return attend_row(*tiles, splash_attention_kernel.SegmentIds(ids, ids))

  outputs = jax.vmap(of_row)(padded(segments, 1, block), *tiles)[:, :, :length, :size]
  return outputs.reshape(*outputs.shape[:1], -1, groups, length, size)


@functools.cache
def _splash_kernel(heads: int, length: int, block: int, interpret: bool, window: int):
  from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
  )

  mask = splash_attention_mask.CausalMask((length, length))
  if window:
    mask = splash_attention_mask.LocalMask((length, length), (window - 1, 0), 0)
  # One kernel for all gradients computes the scores once, but writes d queries for each block of
  # keys, which grows with the square of the length, and is zero outside a window.
  fused = length <= LONGEST_FUSED and not window
  separate = None if fused else block
  sizes = splash_attention_kernel.BlockSizes(
      block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block, block_kv_dkv=block,
      block_kv_dkv_compute=block, use_fused_bwd_kernel=fused, block_q_dq=separate,
      block_kv_dq=separate)
  with jax.ensure_compile_time_eval():
    return splash_attention_kernel.make_splash_mha_single_device(
        splash_attention_mask.MultiHeadMask([mask] * heads), block_sizes=sizes,
        residual_checkpoint_name=RESIDUALS, interpret=interpret)


def _of_segments(kernel, segments, block: int):
  """Returns the kernel without the blocks in which no query and key [S] share a segment."""
  starts, ends = segments[::block, None], segments[block - 1::block]

  def shortened(mask, axis: int):
    live = (mask.block_mask > 0) & ((starts == ends) | jnp.eye(len(ends), dtype=bool))
    # What a block names is read ahead: without it, the first of its row or column that is computed.
    first = jnp.take_along_axis(mask.data_next, jnp.argmax(live, axis, keepdims=True), axis)
    return mask._replace(data_next=jnp.where(live, mask.data_next, first),
                         block_mask=jnp.where(live, mask.block_mask, 0))

  masks = zip(kernel.tree_flatten()[0], (2, 2, 1), strict=True)  # the last one is by keys
  return type(kernel)(*(mask and shortened(mask, axis) for mask, axis in masks), **kernel.kwargs)


def cudnn(queries, keys, values, segments):
  """Attention on an NVIDIA GPU, in bf16. Each row is one segment from its first column on."""
  length = jnp.sum(segments > 0, 1, dtype=jnp.int32)
  by_column = [x.swapaxes(1, 2) for x in (_all_heads(queries), keys, values)]
  outputs = jax.nn.dot_product_attention(
      *by_column, is_causal=True, query_seq_lengths=length, key_value_seq_lengths=length,
      implementation="cudnn")
  return outputs.swapaxes(1, 2).reshape(queries.shape)


def triton(queries, keys, values, segments, interpret: bool = False):
  """Attention on a GPU. Keys and values are repeated for the heads that share them.

  Args:
    interpret: as in `splash`.
  """
  from jax.experimental.pallas.ops.gpu import attention as triton_attention

  groups, length, size = queries.shape[2:]
  keys, values = (jnp.repeat(x, groups, 1) for x in (keys, values))
  tiles = [padded(x, 2, LANES).swapaxes(1, 2) for x in (_all_heads(queries), keys, values)]
  ids = padded(segments, 1, LANES)
  sizes = triton_attention.BlockSizes(block_q=64, block_k=64, block_q_dkv=32, block_kv_dkv=32,
                                      block_q_dq=32, block_kv_dq=64)
  outputs = triton_attention.mha(*tiles, ids, sm_scale=size**-0.5, causal=True, block_sizes=sizes,
                                 interpret=interpret)
  return outputs.swapaxes(1, 2)[:, :, :length].reshape(queries.shape)


def _all_heads(queries):
  """Converts [R, K, G, S, d] to [R, H, S, d]."""
  return queries.reshape(queries.shape[0], -1, *queries.shape[3:])
