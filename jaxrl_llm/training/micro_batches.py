"""Splits the rows of a batch into micro-batches, and joins them again."""

import jax
import jax.numpy as jnp


def split_rows(tree, parts: int):
  """Splits the leading axis, [B] -> [parts, B / parts]; part i takes the rows i, i + parts, ...

  Each shard of a sharded leading axis gives every part an equal share, so no row changes device.
  """
  def split(x):
    return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)

  return jax.tree.map(split, tree)


def join_rows(tree):
  """Returns the inverse of `split_rows`."""
  def join(x):
    return jnp.swapaxes(x, 0, 1).reshape(x.shape[0] * x.shape[1], *x.shape[2:])

  return jax.tree.map(join, tree)
