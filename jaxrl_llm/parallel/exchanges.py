"""Values of the host, from each process to all, without the devices.

Collectives of the devices would have to come in the same order in all threads of all processes.
These values go through the key-value store of `jax.distributed`, where each has a name.
"""

import collections
import logging
import pickle
from collections.abc import Callable
from typing import Any

import jax

# Not public, but Orbax reads it, too; there is no other way to the store.
from jaxrl_llm.parallel import jax_private

PIECE = 2**20  # bytes of a stored value: the messages of the store are limited
PATIENCE = 60  # seconds until a log line says who is waited for
logger = logging.getLogger(__name__)
_round: collections.Counter[str] = collections.Counter()


def index() -> int:
  """Returns the number of this process, from 0."""
  return jax.process_index()


def count() -> int:
  """Returns how many processes there are."""
  return jax.process_count()


def is_main() -> bool:
  """Returns whether this is process 0, which writes what a run has once."""
  return index() == 0


def share(rows: int) -> slice:
  """Returns which of `rows` equal items are this process's: as many as each other process has.

  Raises:
    ValueError: they do not divide over the processes.
  """
  if rows % count():
    raise ValueError(f"{rows} items do not divide over {count()} processes. "
                     f"Fix: a multiple of {count()}.")
  share_size = rows // count()
  return slice(index() * share_size, (index() + 1) * share_size)


def exchange(name: str, value: Any) -> list:
  """Returns the value of each process, in their order; all must call it with the same name.

  Process 0 gathers the values and hands all of them on, so that P processes make 2 (P - 1) requests
  for values, where each asking each of the others would make P (P - 1).

  It waits as long as it takes: commands end all processes when one has died (roll_call.py of
  experiments/commands). A name may be used again. Threads that call it at the same time must use
  different names.

  Args:
    value: picklable, not on a device.
  """
  if count() == 1:
    return [value]
  turn = _round[name]
  _round[name] += 1
  if is_main():
    parts = [pickle.dumps(value), *(_get(_key(name, turn, peer), peer)
                                    for peer in range(1, count()))]
    _set_pieces(_key(name, turn, 0), pickle.dumps(parts))
  else:
    _set_pieces(_key(name, turn, index()), pickle.dumps(value))
    parts = pickle.loads(_get(_key(name, turn, 0), 0))
  values = [value if peer == index() else pickle.loads(part) for peer, part in enumerate(parts)]
  # A process that is here has all values, so all have started this round and ended the one before.
  if turn:
    jax_private.key_value_client().key_value_delete(_key(name, turn - 1, index()))
  return values


def deal(name: str, values: list) -> list:
  """Returns what each process has for this one, in their order; `values` are for each of them.

  Otherwise as `exchange`, but a value is read by one process only.
  """
  if count() == 1:
    return list(values)
  turn = _round[name]
  _round[name] += 1
  for peer, value in enumerate(values):
    if peer != index():
      _set_pieces(f"{_key(name, turn, index())}/to/{peer}", pickle.dumps(value))
  parcels = [values[index()] if peer == index()
              else pickle.loads(_get(f"{_key(name, turn, peer)}/to/{index()}", peer))
              for peer in range(count())]
  if turn:
    jax_private.key_value_client().key_value_delete(_key(name, turn - 1, index()))
  return parcels


def from_main(name: str, make: Callable[[], Any]) -> Any:
  """Returns what `make` returns in process 0, the only one that calls it."""
  return exchange(name, make() if is_main() else None)[0]


def _key(name: str, turn: int, process: int) -> str:
  return f"jaxrl_llm/{name}/{turn}/{process}"


def _set_pieces(key: str, content: bytes) -> None:
  client = jax_private.key_value_client()
  pieces = [content[start:start + PIECE] for start in range(0, len(content), PIECE)]
  for number, piece in enumerate(pieces, 1):
    client.key_value_set_bytes(f"{key}/{number}", piece)
  client.key_value_set_bytes(f"{key}/0", str(len(pieces)).encode())


def _get(key: str, process: int) -> bytes:
  pieces = int(_wait(f"{key}/0", process))
  return b"".join(_wait(f"{key}/{number}", process) for number in range(1, pieces + 1))


def _wait(key: str, process: int) -> bytes:
  while True:
    try:
      return jax_private.key_value_client().blocking_key_value_get_bytes(key, 1000 * PATIENCE)
    except jax.errors.JaxRuntimeError as error:
      if "DEADLINE_EXCEEDED" not in str(error):
        raise
      logger.warning("process %d waits for process %d (%s)", index(), process, key)
