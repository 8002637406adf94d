"""Turns of a row: an environment ends them, and answers them in threads while other rows go on.

A turn's end is seen between chunks, so a row has drawn some tokens too many; they are dropped from
it, and what they left in the cache is forgotten once the row goes on (`decoding._forget`). The next
token's noise depends on its position alone, so it is the one that a chunk of one step would have
drawn.

When an answer comes decides which rows share a chunk, and where in the ring a row lies: sums are
rounded otherwise, and log-probs of two runs may differ in the last bit. Where answers are entered
after a given number of chunks, late or not, two runs agree bit for bit.
"""

import concurrent.futures
import time

import numpy as np

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.rollouts.environment import Continue, Environment, Stop
from jaxrl_llm.types import STOP_LENGTH, STOP_TURNS


class Turns:
  """What the host knows of the turns of B rows with at most N completion tokens.

  Attributes:
    turn: [B], number of the current turn, from 1.
    begin: [B], completion tokens before it.
    seen: [B], of its tokens, those that did not end it.
    turn_id: [B, N], each completion token's turn, 0 for what the environment put in.
    void: [B] bool.
    waiting: row -> (its answer under way, number of chunks decoded when it is due).

  Raises:
    ConfigError: a limit below 1.
  """

  def __init__(self, environment: Environment, rows: int, length: int, max_turns: int,
               max_turn_tokens: int | None, workers: int, chunks: int | None = None):
    limits = {"max_turns": max_turns, "max_turn_tokens": max_turn_tokens, "tool_workers": workers}
    for name, value in limits.items():
      if value is not None and value < 1:
        raise ConfigError(f"{name} = {value}: allowed are 1 to inf. Fix: {name}=1 or more.")
    if chunks is not None and chunks < 0:
      raise ConfigError(
          f"tool_chunks = {chunks}: allowed are None and 0 to inf. Fix: tool_chunks=0 or more.")
    self.environment, self.max_turns, self.max_turn_tokens = environment, max_turns, max_turn_tokens
    self.chunks = chunks
    self.turn, self.begin, self.seen = np.ones(rows, int), np.zeros(rows, int), np.zeros(rows, int)
    self.turn_id, self.void = np.zeros((rows, length), np.int32), np.zeros(rows, bool)
    self.waiting, self._lost = {}, np.zeros(rows, int)
    self._pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="environment")

  def most(self, row) -> np.ndarray:
    """Completion tokens of these rows once their turn has all the tokens that it may."""
    return self.begin[row] + (self.turn_id.shape[1]
                              if self.max_turn_tokens is None else self.max_turn_tokens)

  def given(self, flight, row) -> tuple[np.ndarray, np.ndarray]:
    """`given` and `pending` of `decoding.Slots` for rows [S]."""
    at = np.minimum(flight.base[row][:, None] + np.arange(flight.cfg.chunk),
                    self.turn_id.shape[1] - 1)
    return np.take_along_axis(flight.tokens[row], at, 1), flight.count[row] - flight.base[row]

  def goes_on(self, flight, row: int) -> bool:
    """Whether the row's turn is not over; else what is behind its end is dropped, and its answer
    asked for.
    """
    begin, count = self.begin[row], flight.count[row]
    self.turn_id[row, begin:count] = self.turn[row]
    ids = flight.tokens[row, begin:count].tolist()
    length = self.environment.turn_end(ids, int(self.seen[row]))
    self.seen[row] = len(ids)
    if length is None:
      return True
    if not 1 <= length <= len(ids):
      raise ConfigError(
          f"turn_end = {length}: allowed are None and 1 to the turn's {len(ids)} tokens. "
          "Fix: the environment.")
    kept = begin + length
    flight.tokens[row, kept:count], flight.log_probs[row, kept:count] = flight.cfg.pad_id, 0
    self.turn_id[row, kept:count] = 0
    flight.count[row] = flight.base[row] = kept
    flight.stats.dropped_tokens += int(count - kept)
    flight.stats.useful_steps -= int(count - kept)
    row_id, last = int(flight.host.row_id[row]), bool(self.turn[row] == self.max_turns)
    answer = self._pool.submit(self._step, row_id, ids[:length], last)
    # the chunk that ended the turn counts
    self.waiting[row] = answer, flight.stats.chunks + 1 + (self.chunks or 0)
    return False

  def _step(self, row_id: int, ids: list[int], last: bool) -> tuple[Continue | Stop, float]:
    started = time.perf_counter()
    outcome = self.environment.step(row_id, ids, last=last)
    return outcome, time.perf_counter() - started

  def collect(self, flight) -> None:
    """Enter the answers that have come, or are due; where no row can go on without one, the first
    is waited for.
    """
    for row in self._come(flight):
      outcome, seconds = self.waiting.pop(row)[0].result()
      flight.stats.tool_calls += 1
      flight.stats.tool_seconds += seconds
      if isinstance(outcome, Stop):
        self.void[row] = outcome.void
        flight.end(row, outcome.reason if self._put_in(flight, row, outcome.ids) else STOP_LENGTH)
      elif self.turn[row] == self.max_turns:
        flight.end(row, STOP_TURNS)
      else:
        self._append(flight, row, outcome.ids)

  def _come(self, flight) -> list[int]:
    """Rows whose answers are entered now, in the order in which these were asked for."""
    stuck = bool(self.waiting) and not flight.active().any()
    if self.chunks is not None:
      first = min((due for _, due in self.waiting.values()), default=0)
      due = max(flight.stats.chunks, first) if stuck else flight.stats.chunks
      return [row for row, (_, when) in self.waiting.items() if when <= due]
    if stuck:
      answers = [answer for answer, _ in self.waiting.values()]
      concurrent.futures.wait(answers, return_when=concurrent.futures.FIRST_COMPLETED)
    return [row for row, (answer, _) in self.waiting.items() if answer.done()]

  def _append(self, flight, row: int, ids) -> None:
    """What the environment puts in, if it fits, and the next turn."""
    fits = self._put_in(flight, row, ids)
    if fits:
      self.begin[row], self.turn[row], self.seen[row] = flight.count[row], self.turn[row] + 1, 0
    if not fits or flight.count[row] == flight.limit[row]:
      flight.end(row, STOP_LENGTH)
    else:
      self._replay(flight, row)

  def _put_in(self, flight, row: int, ids) -> bool:
    """Whether the ids fit as a whole; else none is put in."""
    count = flight.count[row]
    fits = bool(count + len(ids) <= flight.limit[row])
    if fits:
      flight.tokens[row, count:count + len(ids)] = ids
      flight.count[row] = count + len(ids)
    return fits

  def make_room(self, flight) -> None:
    """Let the oldest rows begin anew in the ring, as long as the next chunk has no room there.

    A row that waited spans the ring slots that others wrote meanwhile. It loses its own, and is fed
    its tokens again; one that never waited fits and is not touched.
    """
    while True:
      slots = np.flatnonzero(flight.row >= 0)
      oldest = slots[np.argmin(flight.start[slots])]
      if flight.used - flight.start[oldest] + flight.steps() <= flight.rings[-1]:
        return
      row = flight.row[oldest]
      self._lost[row] += flight.base[row]
      flight.base[row], flight.start[oldest] = 0, flight.used
      if row not in self.waiting:
        self._replay(flight, row)

  def _replay(self, flight, row: int) -> None:
    """Count the steps that the row takes again: those of a row that ends while it waits are never
    taken.
    """
    flight.stats.replayed_steps += int(self._lost[row])
    flight.stats.useful_steps -= int(self._lost[row])
    self._lost[row] = 0

  def close(self) -> None:
    """Answers that have not begun are not asked for any more; those under way are waited for."""
    self._pool.shutdown(cancel_futures=True)
