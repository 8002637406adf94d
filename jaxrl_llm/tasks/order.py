"""The problems of a batch, by its index, and the share of each process."""

import functools

import numpy as np


@functools.lru_cache(maxsize=32)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
  return np.random.default_rng((seed, epoch, 2)).permutation(size)


def rows_of_batch(index: int, batch_size: int, size: int, seed: int) -> list[int]:
  """Returns the rows, out of `size`, of batch `index`: each once per epoch, shuffled each epoch.

    p = index * batch_size + i;   row = permutation(seed, p // size)[p % size]

  There is no iterator whose state must be saved: a run that knows its batch index resumes exactly.
  A batch may cross the border of two epochs.
  """
  positions = range(index * batch_size, (index + 1) * batch_size)
  return [row_at(position, size, seed) for position in positions]


def row_at(position: int, size: int, seed: int) -> int:
  """Returns the row, out of `size`, at a position p of the stream that `rows_of_batch` describes.
  """
  return int(_permutation(seed, position // size, size)[position % size])


def share(problems: list, shard: int, shards: int) -> list:
  """Returns the contiguous part of `problems` that process `shard` of `shards` handles.

  Raises:
    ValueError: the items do not divide, or there is no such shard.
  """
  if not 0 <= shard < shards:
    raise ValueError(f"shard = {shard}: allowed are 0 to {shards - 1}")
  if len(problems) % shards:
    raise ValueError(
        f"{len(problems)} problems do not divide over {shards} processes; "
        "fix: rollout.prompts, a multiple of the number of processes")
  part = len(problems) // shards
  return problems[shard * part:(shard + 1) * part]
