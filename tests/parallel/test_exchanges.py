"""Values of the host reach every process, by requests that grow with the processes."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxrl_llm.parallel import exchanges, jax_private


class Store:
  """Stands for the key-value store of jax.distributed; it counts what is asked of it."""

  def __init__(self):
    self.values, self.changed, self.reads = {}, threading.Condition(), 0

  def key_value_set_bytes(self, key, value):
    with self.changed:
      self.values[key] = value
      self.changed.notify_all()

  def blocking_key_value_get_bytes(self, key, milliseconds):
    with self.changed:
      self.reads += key.endswith("/0")  # of each value; its pieces follow
      assert self.changed.wait_for(lambda: key in self.values, milliseconds / 1000), key
      return self.values[key]

  def key_value_delete(self, key):
    with self.changed:
      for name in [name for name in self.values if name.startswith(f"{key}/")]:
        del self.values[name]


def each_with_each(name, value):
  """Wrong in its cost: every process asks every other one."""
  exchanges._set_pieces(exchanges._key(name, 0, exchanges.index()), pickle.dumps(value))
  return [pickle.loads(exchanges._get(exchanges._key(name, 0, other), other))
          for other in range(exchanges.count())]


def run(monkeypatch, count: int, function):
  """(what the function returned in each of `count` threads, the store)."""
  store, place = Store(), threading.local()
  monkeypatch.setattr(jax_private, "key_value_client", lambda: store)
  monkeypatch.setattr(exchanges, "count", lambda: count)
  monkeypatch.setattr(exchanges, "index", lambda: place.index)
  monkeypatch.setattr(exchanges, "_round", Rounds(place))

  def process(index):
    place.index = index
    return function(index)

  with ThreadPoolExecutor(count) as pool:
    return list(pool.map(process, range(count))), store


class Rounds:
  """The rounds of each process, which threads would share."""

  def __init__(self, place):
    self._place, self._turns = place, {}

  def __getitem__(self, name):
    return self._turns.get((self._place.index, name), 0)

  def __setitem__(self, name, turn):
    self._turns[self._place.index, name] = turn


@pytest.mark.parametrize("count", [2, 5, 16])
def test_values_reach_all_by_two_requests_a_process(monkeypatch, count):
  def three_rounds(index):
    return [exchanges.exchange("a", (index, turn)) for turn in range(3)]

  values, store = run(monkeypatch, count, three_rounds)
  assert values == [[[(i, turn) for i in range(count)] for turn in range(3)]] * count
  assert store.reads == 3 * 2 * (count - 1)
  assert {key.split("/")[2] for key in store.values} == {"2"}, "earlier rounds are deleted"
  _, wrong = run(monkeypatch, count, lambda index: each_with_each("a", index))
  assert count == 2 or wrong.reads > 2 * (count - 1)


def test_what_process_0_makes_is_made_once(monkeypatch):
  calls = []
  values, _ = run(monkeypatch, 4, lambda index: exchanges.from_main(
      "b", lambda: calls.append(index) or "made"))
  assert values == ["made"] * 4 and calls == [0]
