"""Host-side state of each completion, and when it continues or ends.

Plain numpy. The device's side (slots.py) reads which rows continue and from where; the tokens that
it samples are added here. Turns (turns.py) are cut here and continued here with the ids that an
environment inserts.
"""

import dataclasses

import numpy as np

from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.rollouts.in_flight import CARRIED, NOT_ENDED
from jaxrl_llm.types import STOP_LENGTH, STOP_TURNS, PromptBatch


@dataclasses.dataclass
class Stats:
  """Counts of a run of the engine, made on the host.

  Attributes:
    slot_steps: decode steps times slots, whether a row was in the slot or not.
    useful_steps: slot-steps that sampled a token of the result, or fed an inserted id for the first
      time.
    cache_bytes_read: bytes of keys and values that attention read, columns without content
      included.
    cache_bytes_needed: bytes of keys and values of the tokens that each sampled token could see,
      row by row. Shared prompts are read less often than this counts.
    cache_bytes_held: bytes of the largest cache, shared prompts included.
    chunks: calls of the decode program.
    dropped_tokens: tokens sampled after the end of a turn.
    replayed_steps: slot-steps that fed again tokens that another run had sampled.
    tool_calls: steps of the environment.
    tool_seconds: sum of their wall-clock times, in seconds.
  """

  slot_steps: int = 0
  useful_steps: int = 0
  cache_bytes_read: int = 0
  cache_bytes_needed: int = 0
  cache_bytes_held: int = 0
  chunks: int = 0
  dropped_tokens: int = 0
  replayed_steps: int = 0
  tool_calls: int = 0
  tool_seconds: float = 0.0

  @property
  def waste(self) -> float:
    """Share of slot-steps in ended or empty slots."""
    return 1 - self.useful_steps / max(1, self.slot_steps)


class RolloutTable:
  """B rows with at most N completion tokens each.

  A row is queued, then in flight, then ended. Rows are admitted in their order, so the queue is one
  number. Without an environment a row is one turn. With one, a row waits after each turn until the
  environment answers.

  Args:
    prompts: host arrays.
    limit: [B] int, completion tokens of each row at most, 1 to N.
    cfg: max_new_tokens is N.
    max_turns: turns of a row at most; 0: no environment.
    max_turn_tokens: a turn that is not over with this many tokens ends its row. None: no limit.

  Attributes:
    tokens: [B, N] int32, completion tokens; pad id after `count`.
    log_probs: [B, N] f32, nats, of sampled tokens; 0 elsewhere.
    turn_id: [B, N] int32, the turn of each sampled token, from 1; 0 elsewhere.
    policy_step: [B, N] int32, the step of the weights that sampled each token; 0 elsewhere.
    step: of the weights that sample now; 0 unless `resume` set it.
    inserts: whether a row may have tokens that are fed and not sampled.
    count: [B], completion tokens.
    cursor: [B], completion tokens up to and including the one that the next decode step feeds; 0
      where it feeds the prompt's last token. Later tokens are pending: an environment inserted
      them, or another run sampled them, so they are fed as they are and not sampled.
    reason: [B], STOP_* of `types`, or NOT_ENDED.
    void: [B] bool, as in `types.Rollout`.
    turn: [B], the current turn, from 1.
    begin: [B], completion tokens before the current turn.
    checked: [B], leading tokens of the current turn that are known not to end it.
    waiting: [B] bool, rows that wait for an answer of their environment.
    admitted: rows in flight or ended; the others are queued.
    stats: counts of the run.
  """

  def __init__(self, prompts: PromptBatch, limit: np.ndarray, cfg: SamplerConfig,
               max_turns: int = 0, max_turn_tokens: int | None = None):
    rows, size = len(limit), cfg.max_new_tokens
    self.prompts, self.limit, self.pad_id = prompts, limit, cfg.pad_id
    self.max_turns, self.inserts = max_turns, max_turns > 0
    self.max_turn_tokens = size if max_turn_tokens is None else max_turn_tokens
    self.tokens = np.full((rows, size), cfg.pad_id, np.int32)
    self.log_probs = np.zeros((rows, size), np.float32)
    self.turn_id = np.zeros((rows, size), np.int32)
    self.policy_step, self.step = np.zeros((rows, size), np.int32), 0
    self.count, self.cursor = np.zeros(rows, int), np.zeros(rows, int)
    self.reason, self.void = np.full(rows, NOT_ENDED), np.zeros(rows, bool)
    self.turn, self.begin = np.ones(rows, int), np.zeros(rows, int)
    self.checked = np.zeros(rows, int)
    self.waiting, self.admitted, self.stats = np.zeros(rows, bool), 0, Stats()
    self._resumed = np.zeros(rows, int)  # tokens that another run sampled

  def resume(self, begun, step: int) -> None:
    """Continues the rows of an `in_flight.Unfinished`, which are the first of the table.

    Args:
      step:   step of the weights that sample now.
    """
    rows = len(begun.count)
    for name in CARRIED:
      getattr(self, name)[:rows] = getattr(begun, name)
    self._resumed[:rows], self.step, self.inserts = begun.count, step, True

  def ended_groups(self, size: int) -> np.ndarray:
    """Returns [B / size] bool, groups of `size` rows of which every row has ended."""
    return (self.reason.reshape(-1, size) != NOT_ENDED).all(1)

  # Which rows continue, and from where.

  def in_flight(self) -> np.ndarray:
    """Returns [B] bool, rows that hold a slot."""
    return (np.arange(len(self.limit)) < self.admitted) & (self.reason == NOT_ENDED)

  def active(self) -> np.ndarray:
    """Returns [B] bool, rows in flight that do not wait for an answer."""
    return self.in_flight() & ~self.waiting

  def queued(self) -> int:
    """Returns the number of rows that have not been admitted."""
    return len(self.limit) - self.admitted

  def next_rows(self, last: int) -> np.ndarray:
    """Returns the next queued rows before row `last` that have not ended, up to one that has.

    Rows before them that an earlier run ended count as admitted from now on, and take no slot.
    """
    while self.admitted < last and self.reason[self.admitted] != NOT_ENDED:
      self.admitted += 1
    end_offsets = np.flatnonzero(self.reason[self.admitted:last] != NOT_ENDED)
    return np.arange(self.admitted, self.admitted + end_offsets[0] if len(end_offsets) else last)

  def turn_limit(self, row) -> np.ndarray:
    """Returns how many completion tokens these rows may have at the end of their turn."""
    return np.minimum(self.limit[row], self.begin[row] + self.max_turn_tokens)

  def left(self, row) -> np.ndarray:
    """Returns how many tokens these rows may still take in their turn, pending tokens included."""
    return self.turn_limit(row) - self.cursor[row]

  def next_fed(self, row) -> tuple[np.ndarray, np.ndarray]:
    """Returns (token, its position) that the next decode step feeds for these rows."""
    cursor, prompt = self.cursor[row], self.prompts.prompt_length[row]
    token = np.where(cursor > 0, self.tokens[row, np.maximum(cursor - 1, 0)],
                     self.prompts.tokens[row, prompt - 1])
    return token, prompt + cursor - 1

  def pending(self, row, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (the `size` tokens after the cursor, how many are pending) for these rows.

    Args:
      row: [S] int.

    Returns:
      ([S, size] int32, [S] int); the number may exceed `size`. Columns after it mean nothing.
    """
    column = np.minimum(self.cursor[row][:, None] + np.arange(size), self.tokens.shape[1] - 1)
    return np.take_along_axis(self.tokens[row], column, 1), self.count[row] - self.cursor[row]

  # Results of a chunk of decode steps.

  def add_tokens(self, row: int, tokens: np.ndarray, log_probs: np.ndarray) -> bool:
    """Adds a chunk's tokens to a row; returns whether the chunk sampled any of them.

    The row's pending tokens come first, and are in the table already.
    """
    pending = min(len(tokens), self.count[row] - self.cursor[row])
    begin, end = self.count[row], self.count[row] + len(tokens) - pending
    self.tokens[row, begin:end] = tokens[pending:]
    self.log_probs[row, begin:end] = log_probs[pending:]
    self.turn_id[row, begin:end] = self.turn[row]
    self.policy_step[row, begin:end] = self.step
    again = min(len(tokens), max(0, self._resumed[row] - self.cursor[row]))
    self.count[row] = end
    self.cursor[row] += len(tokens)
    self.stats.useful_steps += len(tokens) - int(again)
    self.stats.replayed_steps += int(again)
    return bool(end > begin)

  def full(self, row: int) -> bool:
    """Returns whether the row's turn, or the row, has reached its limit of tokens."""
    return bool(self.count[row] == self.turn_limit(row))

  def end(self, row: int, reason: int) -> None:
    """Records why the row ended. Its slot is free from now on."""
    self.reason[row] = reason

  # Turns.

  def turn_ids(self, row: int) -> list[int]:
    """Returns the tokens of the row's current turn."""
    return self.tokens[row, self.begin[row]:self.count[row]].tolist()

  def in_last_turn(self, row: int) -> bool:
    return bool(self.turn[row] == self.max_turns)

  def cut(self, row: int, length: int) -> None:
    """Ends the row's turn after `length` tokens and drops the rest; the row waits for an answer."""
    end, count = self.begin[row] + length, self.count[row]
    self.tokens[row, end:count], self.log_probs[row, end:count] = self.pad_id, 0
    self.turn_id[row, end:count] = self.policy_step[row, end:count] = 0
    self.count[row] = self.cursor[row] = end
    self.stats.dropped_tokens += int(count - end)
    self.stats.useful_steps -= int(count - end)
    self.waiting[row] = True

  def stop(self, row: int, reason: int, ids, void: bool) -> None:
    """Ends a row that waited, after the ids that the environment inserts.

    If the ids do not fit, none is inserted and the length limit ends the row.
    """
    self.waiting[row], self.void[row] = False, void
    self.end(row, reason if self._insert(row, ids) else STOP_LENGTH)

  def start_next_turn(self, row: int, ids) -> None:
    """Inserts ids into a row that waited, and begins its next turn.

    Ends the row if it is in its last turn, if the ids do not fit, or if they fill it.
    """
    self.waiting[row] = False
    if self.in_last_turn(row):
      self.end(row, STOP_TURNS)
      return
    fits = self._insert(row, ids)
    if fits:
      self.begin[row], self.checked[row] = self.count[row], 0
      self.turn[row] += 1
    if not fits or self.count[row] >= self.limit[row]:
      self.end(row, STOP_LENGTH)

  def _insert(self, row: int, ids) -> bool:
    """Inserts the ids if all of them fit; returns whether they do."""
    begin, end = self.count[row], self.count[row] + len(ids)
    fits = bool(end <= self.limit[row])
    if fits:
      self.tokens[row, begin:end] = ids
      self.count[row] = end
    return fits
