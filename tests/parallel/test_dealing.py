"""Dynamic sampling takes the same groups, in the same order, however many processes sample them.

Processes are threads here, which exchange their values in memory.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import test_rollout_batch as tables

from jaxrl_llm.runs import dynamic_sampling, rollout_batch
from jaxrl_llm.runs.dynamic_sampling import DriedUpError
from jaxrl_llm.wiring import loop


class Threads:
  """Stands for `jaxrl_llm.parallel.processes`, with a thread as a process."""

  def __init__(self, count: int):
    self._count, self._local = count, threading.local()
    self._barrier, self._board = threading.Barrier(count, timeout=60), [None] * count

  def run(self, function) -> list:
    """Returns what the function returns in each thread."""
    def one(index):
      self._local.index = index
      return function()

    with ThreadPoolExecutor(self._count) as pool:
      return list(pool.map(one, range(self._count)))

  def count(self):
    return self._count

  def index(self):
    return self._local.index

  def share(self, rows):
    each = rows // self._count
    return slice(self.index() * each, (self.index() + 1) * each)

  def exchange(self, name, value):
    self._board[self.index()] = name, value
    self._barrier.wait()
    names, values = zip(*self._board, strict=True)
    assert len(set(names)) == 1, "the processes exchange different things"
    self._barrier.wait()
    return list(values)

  def deal(self, name, values):
    return [row[self.index()] for row in self.exchange(name, values)]


def replaced(monkeypatch, count: int) -> Threads:
  """Threads in place of the processes of sampling."""
  threads = Threads(count)
  for module in (loop, rollout_batch, dynamic_sampling):
    monkeypatch.setattr(module, "processes", threads)
  return threads


def taken(monkeypatch, count: int, cfg=None) -> list:
  threads = replaced(monkeypatch, count)
  return threads.run(lambda: tables.sampled(cfg))


def joined(batches) -> tuple[list[str], np.ndarray, np.ndarray]:
  """(problems, row ids, rewards) of all processes, in their order."""
  return ([problem.prompt for batch in batches for problem in batch.problems],
          np.concatenate([batch.host.row_id for batch in batches]),
          np.concatenate([batch.verdicts.rewards for batch in batches]))


def same(one, other) -> bool:
  return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_three_processes_take_the_groups_of_one(monkeypatch):
  batches = taken(monkeypatch, 3)
  assert [len(batch.problems) for batch in batches] == [1, 1, 1]
  assert joined(batches)[0] == ["1.1", "3.0", "3.1"]
  assert same(joined(batches), joined(taken(monkeypatch, 1)))
  assert len({batch.cursor for batch in batches}) == 1
  for name in ("kept_groups", "tokens"):
    assert len({batch.metrics[f"dynamic_sampling/{name}"] for batch in batches}) == 1


def test_a_group_that_stays_where_it_was_sampled_is_told(monkeypatch):
  """A wrong dealing: each process keeps its own first group."""
  right = joined(taken(monkeypatch, 1))
  monkeypatch.setattr(dynamic_sampling, "_dealt", lambda mixed, counts, wanted, size:
                      dynamic_sampling._take(mixed, np.arange(min(1, len(mixed.problems))), size))
  assert not same(joined(taken(monkeypatch, 3)), right)


def test_all_processes_run_dry_together(monkeypatch):
  threads = replaced(monkeypatch, 3)

  def dry():
    with pytest.raises(DriedUpError, match="1 of 6 groups in 2 draws"):
      tables.sampled(tables.config(max_draws=2))
    return True

  assert threads.run(dry) == [True] * 3
