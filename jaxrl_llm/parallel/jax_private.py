"""The names of JAX's private modules that the package uses, all in one place.

JAX may move or change these between versions; tests/parallel/test_jax_private.py says when.
"""

from jax._src import clusters, distributed

Distributed = tuple[str | None, int | None, int | None, list[int] | None]


def launched_place(coordinator: str | None, seconds: int) -> Distributed:
  """Returns what an engine (Cloud TPU, SLURM, Kubernetes, Open MPI) says of this process.

  `jax.distributed.initialize` asks the same, but then waits without saying for whom.

  Args:
    coordinator: host:port of process 0, if it is known.
    seconds: to wait for an answer.

  Returns:
    (coordinator, number of processes, index of this one, numbers of its local devices), None where
    nothing launched it.
  """
  return clusters.ClusterEnv.auto_detect_unset_distributed_params(
      coordinator, None, None, None, None, seconds)


def key_value_client():
  """Returns the client of the key-value store of `jax.distributed`; None in a single process."""
  return distributed.global_state.client
