"""Rows of a batch in parts that are computed one after the other."""

import jax
import jax.numpy as jnp


def split_rows(tree, parts: int):
  """Leading axis [B] -> [parts, B / parts]; part i takes the rows i, i + parts, ...

  Each shard of a sharded leading axis gives every part an equal share, so that no row changes
  device.
  """
  split = lambda x: jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)
  return jax.tree.map(split, tree)


def join_rows(tree):
  """Inverse of `split_rows`."""
  join = lambda x: jnp.swapaxes(x, 0, 1).reshape(x.shape[0] * x.shape[1], *x.shape[2:])
  return jax.tree.map(join, tree)
