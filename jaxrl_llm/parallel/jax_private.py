"""The names of JAX's private modules that the package uses, all in one place.

JAX may move or change these between versions; tests/parallel/test_jax_private.py says when.
"""

from jax._src import distributed


def key_value_client():
  """Returns the client of the key-value store of `jax.distributed`; None in a single process."""
  return distributed.global_state.client
