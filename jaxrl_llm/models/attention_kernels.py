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
  kernel = _splash_kernel(keys.shape[1] * groups, length + -length % block, block, interpret,
                          window)
  queries = (queries * size**-0.5).reshape(queries.shape[0], -1, length, size)
  tiles = [padded(padded(x, 2, block), 3, LANES) for x in (queries, keys, values)]
  ids = padded(segments, 1, block)
  outputs = jax.vmap(kernel)(*tiles, splash_attention_kernel.SegmentIds(ids, ids))
  outputs = outputs[:, :, :length, :size]
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
