"""Attention of a decode step in which each row has its own length (row_cache.py): what is read are
the blocks of columns in which rows have tokens.

Shapes: B rows, H heads, K kv-heads, d head width, T columns.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxrl_llm.models import kv_cache
from jaxrl_llm.models.attention import with_prefix

NAME = "live_attention"  # of the kernel
TILE_BYTES = 32  # of a tile of columns, along the columns: 8 in f32, 16 in bfloat16
LANES = 128  # numbers side by side in a TPU's registers and memory


class LiveRows(NamedTuple):
  """What the rows of a decode step attend to.

  Attributes:
    length: [B] int32, tokens with the new one; 0: the row does nothing.
    first: [B] int32, the first column that the new token sees.
    row, number: [n] int32, the live blocks of a device's rows: which row, which block of it.
    total: [1] int32, how many there are; one number for each device.
  """

  length: Int[Array, " B"]
  first: Int[Array, " B"]
  row: Int[Array, " n"]
  number: Int[Array, " n"]
  total: Int[Array, " 1"]


class Chip(NamedTuple):
  """How the kernel runs on a device.

  Attributes:
    cores: they divide the key-value heads.
    interpret: not as a TPU's program.
  """

  cores: int
  interpret: bool


def block_of(columns: int, dtype) -> int:
  """Returns the columns of a block, for rows of so many in a cache of this dtype."""
  return 512 if columns >= 4096 else LANES if columns >= 1024 or dtype == jnp.int8 else 16


def side_by_side(head_dim: int, kv_heads: int) -> int:
  """Returns how many heads the kernel's cache has side by side: those that fill LANES.

  The columns [B, K, T, d] are then [B, K / n, T, n d]. 0: these heads cannot be laid so.
  """
  if head_dim % LANES == 0:
    return 1
  heads = LANES // head_dim
  return heads if head_dim * heads == LANES and kv_heads % heads == 0 else 0


def join(x: Float[Array, "B K T d"], side: int) -> Float[Array, "B k T D"]:
  """Returns columns of a cache with `side` heads side by side, [B, K / n, T, n d]."""
  if side == 1:
    return x
  rows, heads, columns, size = x.shape
  split_heads = x.reshape(rows, heads // side, side, columns, size)
  return split_heads.swapaxes(2, 3).reshape(rows, heads // side, columns, side * size)


def live_rows(length: Int[Array, " B"], keys, constrain, window: int = 0) -> LiveRows:
  """Lists the live blocks of each device's rows, once for all layers of a step that have a window.

  Args:
    keys: of a layer, as in `attend`.
    window: tokens that the new one sees, itself among them; 0: all.
  """
  columns, block = keys.shape[2], block_of(keys.shape[2], keys.dtype)
  most = min(columns // block, (window + block - 2) // block + 1 if window else columns)

  def listed(length):
    first = jnp.maximum(length - window, 0) if window else jnp.zeros_like(length)
    begin = lax.div(first, block)
    count = lax.div(length + block - 1, block) - begin
    ends = jnp.cumsum(count)
    step = jnp.arange(length.shape[0] * most, dtype=jnp.int32)
    row = jnp.searchsorted(ends, step, side="right", method="compare_all").astype(jnp.int32)
    row = jnp.minimum(row, length.shape[0] - 1)
    number = step + (begin - ends + count)[row]
    return first, row, number.astype(jnp.int32), ends[-1:].astype(jnp.int32)

  return LiveRows(length, *_by_shard(constrain, listed, (length,), (("rows",),)))


def attend(queries, new_keys, new_values, layer_cache: tuple, rows: LiveRows, constrain,
           first=None):
  """Attends to a row's columns, to its new token, and to its prompt where it is shared.

  Args:
    queries: [B, 1, H, d].
    new_keys, new_values: [B, 1, K, d].
    layer_cache: (keys, values) [B, K / n, T, n d] of a RowCache, as `kv_cache.held`, with a Prefix
      where prompts are shared.
    constrain: `parallel.Layout` of the devices; another function means JAX's default ones.
    first: as in `attention.attend_shared`.

  Returns:
    (outputs [B, 1, H, d], (keys, values) with the new token at column length - 1).
  """
  from jaxrl_llm.models import live_kernel  # Pallas takes long to import

  keys, values, *prefix = layer_cache
  size, kv_heads = queries.shape[-1], new_keys.shape[2]
  by_kv_head = (queries * size**-0.5).reshape(len(queries), kv_heads, -1, size)
  side, block = keys.shape[-1] // size, block_of(keys.shape[2], keys.dtype)

  def joined(x):
    return x.reshape(len(x), kv_heads // side, 1, -1)

  new = jax.tree.map(joined, [kv_cache.held(x, keys.dtype, 3) for x in (new_keys, new_values)])
  run = functools.partial(_run, block, _chip(constrain, keys.shape[1]))
  heads, flat = ("rows", "kv_heads", None, None), ("rows",)
  out, log_sum, keys, values = _by_shard(
      constrain, run, (live_kernel.wide(by_kv_head, side), *new, keys, values, *rows),
      (heads,) * 5 + (flat,) * 5)
  out, log_sum = live_kernel.narrow(out, side), log_sum.reshape(*by_kv_head.shape[:3], 1)
  if prefix:
    part = log_sum[..., None, :], jnp.ones_like(log_sum)[..., None, :], out[..., None, :]
    return with_prefix(part, queries, prefix[0], first), (keys, values)
  return out.astype(queries.dtype).reshape(queries.shape), (keys, values)


def _run(block: int, chip: Chip, queries, *arrays):
  from jaxrl_llm.models import live_kernel

  return live_kernel.attend_and_write(queries, arrays[:2], arrays[2:4], LiveRows(*arrays[4:]),
                                      block, chip)


def _by_shard(constrain, function, arrays: tuple, axes: tuple):
  by_shard = getattr(constrain, "by_shard", None)
  return function(*arrays) if by_shard is None else by_shard(function, arrays, axes)


def device_of(constrain) -> jax.Device:
  """Returns a device of a `parallel.Layout`, or JAX's default one."""
  mesh = getattr(constrain, "mesh", None)
  return jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def _chip(constrain, heads: int) -> Chip:
  device = device_of(constrain)
  if device.platform != "tpu":
    return Chip(1, True)
  cores = getattr(device, "num_cores", 1)
  return Chip(cores if heads % cores == 0 else 1, False)
