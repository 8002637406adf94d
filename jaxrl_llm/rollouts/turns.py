"""Turns of a row: an environment ends them, and answers in threads while other rows continue.

The end of a turn is found between two chunks, so a row may have sampled some tokens too many. They
are dropped from the table, and the row's next tokens overwrite their columns in the cache. The
noise of a token depends on its position only, so chunks of one step would have sampled the same
tokens.

The moment at which an answer is entered decides which rows share a chunk, and its size. Sums are
then rounded in another order, and log-probs of two runs may differ in the last bit. If answers are
entered after a given number of chunks instead, two runs agree bit for bit.
"""

import concurrent.futures
import contextlib
import sys
import time

import numpy as np

from jaxrl_llm.fields import ConfigError, PluginError
from jaxrl_llm.rollouts.environment import Continue, Environment, Stop
from jaxrl_llm.rollouts.rollout_table import RolloutTable

# Settings of turns, with the value that `engine.run` takes without an environment.
UNSET = {"max_turns": 1, "max_turn_tokens": None, "tool_workers": 4, "tool_chunks": None}


def check(environment: Environment | None, settings: dict) -> None:
  """Checks the settings of turns, by the names in `UNSET`.

  Raises:
    ConfigError: a setting out of range, or one that is set without an environment.
  """
  for name, value in settings.items():
    minimum = 0 if name == "tool_chunks" else 1
    if environment is None and value != UNSET[name]:
      raise ConfigError(f"{name} = {value} without an environment: allowed is {UNSET[name]}. "
                        "Fix: an environment.")
    if value is not None and value < minimum:
      none = "None and " if UNSET[name] is None else ""
      raise ConfigError(
          f"{name} = {value}: allowed are {none}{minimum} to inf. Fix: {name}={minimum} or more.")


def _check_outcome(outcome, vocab_size: int | None) -> None:
  """Raises TypeError unless an answer is a Continue or a Stop of ids in the vocabulary."""
  if not isinstance(outcome, (Continue, Stop)):
    raise TypeError(f"it returned {repr(outcome)[:80]}; a Continue or a Stop was expected")
  ids = outcome.ids
  if isinstance(ids, str) or not all(isinstance(i, (int, np.integer)) and i >= 0 for i in ids):
    raise TypeError(f"ids = {repr(ids)[:80]}: token ids of 0 or more were expected")
  if vocab_size is not None and any(i >= vocab_size for i in ids):
    raise TypeError(f"ids = {repr(ids)[:80]}: token ids of 0 to {vocab_size - 1} were expected")
  if isinstance(outcome, Stop) and not isinstance(outcome.reason, (int, np.integer)):
    raise TypeError(f"reason = {outcome.reason!r}: a STOP_* of jaxrl_llm.types was expected")


class Turns:
  """Asks an environment about turns, and adds its answers to the table.

  Args:
    table: its rows wait while their answers are under way.
    workers: threads in which the environment answers.
    chunks: chunks that other rows decode before an answer is entered. None: as soon as it arrives.
    vocab_size: token ids of an answer are below it; None: they are not checked.
  """

  def __init__(self, environment: Environment, table: RolloutTable, workers: int,
               chunks: int | None = None,
               vocab_size: int | None = None):
    self._vocab_size = vocab_size
    self.environment, self.table, self.chunks = environment, table, chunks
    self._answers = {}  # row -> (answer under way, number of chunks at which it is due)
    self._pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="environment")

  def ends(self, row: int) -> bool:
    """Returns whether the row's turn is over; if so, cuts it there and asks for its answer.

    Raises:
      ConfigError: the environment returns a length outside of the turn.
    """
    ids = self.table.turn_ids(row)
    with self._plugin_errors("turn_end"):
      length = self.environment.turn_end(ids, int(self.table.checked[row]))
    self.table.checked[row] = len(ids)
    if length is None:
      return False
    if not isinstance(length, (int, np.integer)) or not 1 <= length <= len(ids):
      raise PluginError(f"{self._where}: turn_end = {length!r}: allowed are None and 1 to the "
                        f"turn's {len(ids)} tokens. Fix: the environment.")
    self.table.cut(row, length)
    row_id = int(self.table.prompts.row_id[row])
    answer = self._pool.submit(self._step, row_id, ids[:length], self.table.in_last_turn(row))
    self._answers[row] = answer, self.table.stats.chunks + (self.chunks or 0)
    return True

  def _step(self, row_id: int, ids: list[int], last: bool) -> tuple[Continue | Stop, float]:
    """Returns (the environment's answer, seconds that it took)."""
    begin = time.perf_counter()
    with self._plugin_errors("step"):
      outcome = self.environment.step(row_id, ids, last=last)
      _check_outcome(outcome, self._vocab_size)
    return outcome, time.perf_counter() - begin

  @property
  def _where(self) -> str:
    """The environment's class, and the file of it."""
    kind = type(self.environment)
    module = sys.modules.get(kind.__module__)
    return f"environment {kind.__qualname__} ({getattr(module, '__file__', kind.__module__)})"

  @contextlib.contextmanager
  def _plugin_errors(self, method: str):
    """Turns what the environment raises into one line that names it.

    Raises:
      PluginError: for every Exception but ConfigError, and for sys.exit.
    """
    try:
      yield
    except ConfigError:
      raise
    except (Exception, SystemExit) as error:
      reason = " ".join(str(error).split())[:300]
      raise PluginError(f"{self._where}: {method}: {type(error).__name__}: {reason}") from error

  def collect(self) -> None:
    """Enters the answers that have arrived, or are due.

    Waits for the first answer if no row can continue without one.
    """
    self._enter(self._answered_rows())

  def collect_all(self) -> None:
    """Waits for the answers under way and enters them, so that no row waits."""
    self._enter(list(self._answers))

  def _enter(self, rows: list[int]) -> None:
    for row in rows:
      outcome, seconds = self._answers.pop(row)[0].result()
      self.table.stats.tool_calls += 1
      self.table.stats.tool_seconds += seconds
      if isinstance(outcome, Stop):
        self.table.stop(row, outcome.reason, outcome.ids, outcome.void)
      else:
        self.table.start_next_turn(row, outcome.ids)

  def _answered_rows(self) -> list[int]:
    """Returns the rows whose answers are entered now, in the order in which they were asked."""
    stuck = bool(self._answers) and not self.table.active().any()
    if self.chunks is not None:
      now = self.table.stats.chunks
      if stuck:
        now = max(now, min(due for _, due in self._answers.values()))
      return [row for row, (_, due) in self._answers.items() if due <= now]
    if stuck:
      answers = [answer for answer, _ in self._answers.values()]
      concurrent.futures.wait(answers, return_when=concurrent.futures.FIRST_COMPLETED)
    return [row for row, (answer, _) in self._answers.items() if answer.done()]

  def close(self) -> None:
    """Cancels answers that have not started, and waits for the others."""
    self._pool.shutdown(cancel_futures=True)
