"""Completions that outlive a run of the engine: what is kept of them, and what ends such a run.

A run under newer weights begins with the completions that the one before left. Their tokens are fed
again, so that keys and values are the newer weights', and sampling continues after them. A token
keeps the log-prob and the step of the weights that sampled it. The noise depends only on the row's
id and the position, so it does not matter when a run ends.
"""

from typing import NamedTuple

import numpy as np

NOT_ENDED = -1  # `RolloutTable.reason` of a row that has not ended
# State that another run needs to continue a row.
CARRIED = ("tokens", "log_probs", "policy_step", "turn_id", "count", "reason", "turn", "begin",
           "checked", "void")


class Unfinished(NamedTuple):
  """Complete groups of rows that a run of the engine left; some of the rows may have ended.

  Attributes:
    row_id: [R] int32, unique in the training run.
    tokens, log_probs, policy_step, turn_id: [R, N], as in `RolloutTable`, by completion token.
    count, reason, turn, begin, checked: [R] int32, as there.
    void: [R] bool, as there.
  """

  row_id: np.ndarray
  tokens: np.ndarray
  log_probs: np.ndarray
  policy_step: np.ndarray
  turn_id: np.ndarray
  count: np.ndarray  # type: ignore[assignment]
  reason: np.ndarray
  turn: np.ndarray
  begin: np.ndarray
  checked: np.ndarray
  void: np.ndarray

  @staticmethod
  def from_table(table, rows: np.ndarray) -> "Unfinished":
    """Copies rows of a table."""
    state = {name: getattr(table, name)[rows] for name in CARRIED}
    integers = {name: x.astype(np.int32) for name, x in state.items()
               if np.issubdtype(x.dtype, np.integer)}
    return Unfinished(np.asarray(table.prompts.row_id[rows], np.int32), **state | integers)


def not_begun(row_id: np.ndarray, size: int) -> Unfinished:
  """Returns rows without any token, of at most `size` completion tokens."""
  rows, zeros = len(row_id), np.zeros(len(row_id), np.int32)
  per_token = np.zeros((rows, size), np.int32)
  return Unfinished(
      row_id.astype(np.int32), per_token,
      np.zeros((rows, size), np.float32), per_token.copy(), per_token.copy(), zeros,
      np.full(rows, NOT_ENDED, np.int32), zeros + 1, zeros.copy(), zeros.copy(),
      np.zeros(rows, bool))


class InFlight(NamedTuple):
  """The start and the end of one run of the engine.

  Attributes:
    begun: the first rows of its prompts, as the run before left them.
    step: `TrainState.step` of its weights.
    groups: it ends as soon as that many groups have ended.
  """

  begun: Unfinished
  step: int
  groups: int
