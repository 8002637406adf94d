"""Each row once per epoch, by the batch index; processes share a batch without overlap."""

import numpy as np
import pytest

from jaxrl_llm.tasks.order import rows_of_batch, share


def covers_epochs(rows, size: int) -> bool:
  """Whether each stretch of `size` rows in the stream holds every row once."""
  epochs = np.array(rows[:len(rows) // size * size]).reshape(-1, size)
  return bool((np.sort(epochs, 1) == np.arange(size)).all())


def stream(order, batches: int, batch_size: int, size: int, seed: int = 0) -> list[int]:
  return [row for index in range(batches) for row in order(index, batch_size, size, seed)]


def with_replacement(index, batch_size, size, seed):
  return np.random.default_rng((seed, index)).integers(0, size, batch_size).tolist()


@pytest.mark.parametrize("batch_size,size", [(4, 12), (5, 12), (12, 12), (30, 12), (1, 1), (3, 7)])
def test_every_row_once_per_epoch(batch_size, size):
  assert covers_epochs(stream(rows_of_batch, 3 * size, batch_size, size), size)


def test_sampling_with_replacement_is_rejected():
  assert not covers_epochs(stream(with_replacement, 12, 4, 12), 12)


def test_epochs_and_seeds_differ():
  first, second = np.array(stream(rows_of_batch, 2, 50, 50)).reshape(2, 50)
  assert (first != second).any() and rows_of_batch(0, 50, 50, 1) != first.tolist()
  assert rows_of_batch(1, 50, 50, 0) == second.tolist()


def test_shares_partition_a_batch_in_order():
  rows = rows_of_batch(3, 12, 100, 0)
  for shards in (1, 2, 3, 4):
    assert [row for shard in range(shards) for row in share(rows, shard, shards)] == rows
  with pytest.raises(ValueError, match="do not divide over 5"):
    share(rows, 0, 5)
  with pytest.raises(ValueError, match="shard = 2"):
    share(rows, 2, 2)
