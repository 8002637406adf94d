"""The next iteration's rollouts in a separate thread, while this iteration trains.

A rollout batch is a pure function of (parameters, cursor, seed). With `updates.staleness` >= 1 its
parameters exist before the updates of the iteration before, so sampling early changes no result,
and a batch that a killed run lost is sampled again. With `rollout.tool_chunks=none` runs agree only
up to rounding, with or without overlap: which rows decode together depends on when a tool answers.
"""

import concurrent.futures
import dataclasses
import time

import jax

from jaxrl_llm import parallel
from jaxrl_llm.runs.dynamic_sampling import sample_batch
from jaxrl_llm.runs.rollout_batch import Dispatched, RolloutBatch, dispatch, verify_batch
from jaxrl_llm.types import Params
from jaxrl_llm.wiring.loop import RolloutSource


class Ahead:
  """Samples at most one batch ahead. A context manager for one run, called from one thread.

  Prompts, sampling, tools and verification run in the batch's own thread. It launches no program
  with collectives on devices that train while the caller's thread may: see `divisions.check`.
  Evaluations and checkpoints may run at the same time.
  """

  def __init__(self, source: RolloutSource):
    self._source = source
    self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="rollouts")
    self._pending: concurrent.futures.Future[RolloutBatch] | None = None
    self._cursor = 0

  def take(self, params: Params, step: jax.Array, cursor: int) -> RolloutBatch:
    """Returns the pending batch, for which `begin` got the same arguments; see `sample_batch`.

    In the first iteration, and in the first one after a restart, nothing is pending: the batch is
    sampled now, in the caller's thread.

    Returns:
      The batch. Its metric `time/waited` is the time in this call, seconds; `time/rollout` is the
      time that sampling took.

    Raises:
      ValueError: the pending batch begins at another cursor.
      Any exception of sampling, from its thread.
    """
    begin = time.perf_counter()
    if self._pending is None:
      batch = sample_batch(self._source, params, step, cursor)
    elif self._cursor != cursor:
      raise ValueError(f"the pending batch begins at task batch {self._cursor}, batch {cursor} was "
                       "asked for. Fix: an Ahead for each run.")
    else:
      pending, self._pending = self._pending, None
      batch = pending.result()
    wait = time.perf_counter() - begin
    return dataclasses.replace(batch, metrics=batch.metrics | {"time/waited": wait})

  def begin(self, params: Params, step: jax.Array, cursor: int) -> None:
    """Begins to sample the next batch.

    If one program samples on the devices that train, it is enqueued before this returns, so it runs
    before the updates, and its verification at the same time as the updates. The engine's chunks
    and the repetitions of dynamic sampling come between the updates as it happens.

    Args:
      params, step: the sampling policy, in arrays that nothing donates.
      cursor: index of the batch's first task batch: where the batch before ended.

    Raises:
      ValueError: a batch is pending.
    """
    if self._pending is not None:
      raise ValueError(f"a batch from task batch {self._cursor} is pending. Fix: take it first.")
    source, self._cursor = self._source, cursor
    if source.can_enqueue:
      future = self._pool.submit(self._dispatch, params, step, cursor)
      self._pending = self._pool.submit(self._verify, future)
      concurrent.futures.wait([future])
      return
    if parallel.spans_processes(source.sampler.mesh) or source.uses_server:
      # This thread launches everything that has collectives between devices or processes.
      params = source.sampler.prepare(params)
      source = dataclasses.replace(
          source, sampler=dataclasses.replace(source.sampler, prepare=_identity))
    self._pending = self._pool.submit(sample_batch, source, params, step, cursor)

  def _dispatch(self, params: Params, step: jax.Array, cursor: int) -> Dispatched:
    return dispatch(self._source, self._source.sampler.prepare(params), step, cursor)

  def _verify(self, dispatched: concurrent.futures.Future) -> RolloutBatch:
    return verify_batch(self._source, dispatched.result())

  def close(self) -> None:
    """Waits for the pending batch, which cannot be interrupted, and drops it."""
    self._pool.shutdown()
    self._pending = None

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()


def _identity(params: Params) -> Params:
  return params
