"""The next iteration's draw in a thread of its own, while this iteration trains.

A draw is a pure function of (parameters, cursor, seed). With `updates.staleness` >= 1 its
parameters exist before the updates of the iteration in front of it, so that drawing early changes
no result, and a draw that a killed run lost is made again. The one exception is that of every run
with `rollout.tool_chunks=none`: when a tool answers then decides which rows decode together, so
that runs agree up to rounding, overlap or not.
"""

import concurrent.futures
import dataclasses
import threading
import time

from jaxrl_llm.runs.draw import Draw, draw
from jaxrl_llm.runs.setup import Parts


class Ahead:
  """At most one draw in flight; a context manager. One serves one run, and is called from one
  thread.

  What runs in the draw's thread: prompts, sampling, tools, verification. It launches no program
  with collectives but on `Parts.rollout_mesh`, which `parallel.check` keeps to itself where there
  are several devices. Evaluations and checkpoints may go on beside it.
  """

  def __init__(self):
    self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="draw")
    self._flying, self._cursor = None, 0

  def draw(self, parts: Parts, params, step, cursor: int, then=None) -> Draw:
    """As `draw.draw`; the draw in flight where there is one, which `begin` was given the same
    arguments for.

    None is in flight in the first iteration, and in the first after a restart: it is made now, in
    the caller's thread.

    Args:
      then: called where the draw is made now. One in flight was sampled while the caller's
        parameters still changed, so that there was nothing to score it with.

    Returns:
      The draw; its metric `time/waited` is the time in this call, seconds, `time/rollout` that of
      the sampling itself.

    Raises:
      ValueError: the draw in flight begins at another cursor.
      What the draw raised in its thread.
    """
    begin = time.perf_counter()
    if self._flying is None:
      found = draw(parts, params, step, cursor, then)
    elif self._cursor != cursor:
      raise ValueError(
          f"the draw in flight begins at task batch {self._cursor}, batch {cursor} was asked for. "
          "Fix: an Ahead for each run.")
    else:
      flying, self._flying = self._flying, None
      found = flying.result()
    return dataclasses.replace(found,
                               metrics=found.metrics | {"time/waited": time.perf_counter() - begin})

  def begin(self, parts: Parts, params, step, cursor: int) -> None:
    """Begin the next draw.

    On devices that train too, a generation of one program is enqueued when this returns, so that it
    stands in front of the updates and its verification runs beside them. The chunks of the engine
    and the repetitions of dynamic sampling come between the updates as it happens.

    Args:
      params, step: of the policy, in arrays that nothing donates.
      cursor: index of the draw's first task batch: where the draw before ended.

    Raises:
      ValueError: one is in flight.
    """
    if self._flying is not None:
      raise ValueError(f"a draw from task batch {self._cursor} is in flight. Fix: take it first.")
    enqueued = threading.Event()

    def make() -> Draw:
      try:
        return draw(parts, params, step, cursor, lambda rollout: enqueued.set())
      finally:
        enqueued.set()

    self._flying, self._cursor = self._pool.submit(make), cursor
    cfg = parts.cfg
    if not (cfg.rollout.slots or cfg.dynamic_sampling.enabled or cfg.mesh.rollout):
      enqueued.wait()

  def close(self) -> None:
    """Waits for the draw in flight, which cannot be interrupted, and forgets it."""
    self._pool.shutdown()
    self._flying = None

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()
