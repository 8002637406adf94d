"""When a turn of the policy is over: the protocol of environments, and a base for one's own.

The engine asks `turn_end` after each chunk, and `step`, in another thread, after each turn. Sampled
ids are kept as they are and never encoded again; inserted text is encoded separately.
"""

import bisect
import copy
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.types import STOP_STRING, STOP_TOKEN, Problem

# Characters decoded before a marker: decoding may begin in the middle of a character of several
# bytes.
SPARE = 4


@dataclasses.dataclass(frozen=True)
class Continue:
  """The policy's next turn follows.

  Attributes:
    ids: inserted after the turn, with mask False.
  """

  ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Stop:
  """The row ends.

  Attributes:
    reason: a STOP_* of `types`.
    void: the row is no attempt, or shows nothing about the policy, so training drops it.
    ids: inserted after the turn, with mask False: an output that is the answer, for the verifier.
  """

  reason: int
  void: bool = False
  ids: tuple[int, ...] = ()


class Environment(Protocol):
  """Ends turns and answers them. Results depend only on the arguments and on the tool.

  An environment that also has `for_rows` gets the problems of the rows; see `TurnEnvironment`.
  """

  def turn_end(self, turn_ids: Sequence[int], seen: int = 0) -> int | None:
    """Returns how many of the turn's tokens to keep if it is over, or None if it continues.

    Must be fast, because all rows wait for it.

    Args:
      turn_ids: tokens that the policy sampled in this turn, a stop token included.
      seen: leading tokens for which an earlier call returned None. Saves time, changes no result.
    """
    ...

  def step(self, row_id: int, turn_ids: Sequence[int], last: bool = False) -> Continue | Stop:
    """Returns what follows a turn. May take long; safe to call from many threads.

    Args:
      row_id: as in `PromptBatch`.
      turn_ids: the kept tokens of the turn.
      last: no turn may follow, so that no tool runs and a Stop is returned.
    """
    ...

  def close(self) -> None:
    """Releases what the environment holds."""
    ...


class TurnEnvironment:
  """Base of environments: ends a turn at its first stop token, or earlier if its text is complete.

  A subclass adds `step`.

  Args:
    markers: texts, one of which ends every complete turn; none: only a stop token ends a turn.
    complete: text -> whether a turn with this text is over. If it is, it must be for every text
      that continues it. None: it is over with its first marker.

  Attributes:
    problems: problem of each row id that is being sampled; see `for_rows`.
  """

  def __init__(self, tokenizer, eos_ids: Sequence[int], markers: Sequence[str] = (),
               complete: Callable[[str], bool] | None = None):
    self._tokenizer, self._eos_ids = tokenizer, frozenset(eos_ids)
    self._markers = tuple(markers)
    self._complete = complete or self._has_marker
    self._overlap = max((len(marker.encode()) for marker in markers), default=0) + SPARE
    self.problems: Mapping[int, Problem] = {}
    # Only for the threads of one environment. Others that share the tokenizer (prompts, verdicts)
    # need no lock, because the tokenizer's settings are never changed.
    self._lock = threading.Lock()

  def turn_end(self, turn_ids: Sequence[int], seen: int = 0) -> int | None:
    """See `Environment`."""
    stop_index = next((i for i in range(seen, len(turn_ids)) if int(turn_ids[i]) in self._eos_ids),
                      None)
    ids = [int(i) for i in (turn_ids if stop_index is None else turn_ids[:stop_index])]
    tail = self._text(ids[self._back(ids, seen):])
    if any(marker in tail for marker in self._markers) and self._complete(self._text(ids)):

      def complete_with(count: int) -> bool:
        return self._complete(self._text(ids[:count]))

      return 1 + bisect.bisect_left(range(1, len(ids)), True, key=complete_with)
    return None if stop_index is None else stop_index + 1

  def _back(self, ids: Sequence[int], start: int) -> int:
    """Returns the index to decode from again, so that a marker split across `start` is still found.

    Some ids have no text, so it may take more ids than the marker has characters.
    """
    count = self._overlap
    while count < start and len(self._text(ids[start - count:start])) < self._overlap:
      count *= 2
    return max(0, start - count)

  def _text(self, ids: Sequence[int]) -> str:
    with self._lock:
      return self._tokenizer.decode(ids, skip_special_tokens=False,
                                    clean_up_tokenization_spaces=False)

  def _has_marker(self, text: str) -> bool:
    return any(marker in text for marker in self._markers)

  def for_rows(self, problems: Mapping[int, Problem]):
    """Returns the environment for the rows of one batch, by row id.

    Another batch may be under way at the same time, with rows of the same ids.
    """
    bound = copy.copy(self)
    bound.problems = problems
    return bound

  def split(self, turn_ids: Sequence[int]) -> tuple[str, bool]:
    """Returns (text of a turn without its stop token, whether a stop token ended the turn)."""
    ids = [int(i) for i in turn_ids]
    is_over = bool(ids) and ids[-1] in self._eos_ids
    return self._text(ids[:-1] if is_over else ids), is_over

  def ids(self, text: str) -> list[int]:
    """Returns the ids of a text, for `Continue`."""
    with self._lock:
      return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

  def close(self) -> None:
    """Does nothing: a subclass that holds something releases it here."""


def before_stop(text: str, strings: Sequence[str]) -> str:
  """Returns the text before the first stop string, or all of it if there is none."""
  positions = (text.find(string) for string in strings)
  return text[:min((position for position in positions if position >= 0), default=len(text))]


class StopStrings(TurnEnvironment):
  """Ends a row at the first of some texts, after the token in which the text ends.

  The row ends with STOP_STRING and keeps the string, because the policy sampled it; `before_stop`
  removes it from the text.

  Args:
    strings: texts, none empty.
    eos_ids: stop tokens of the policy.

  Raises:
    ConfigError: no text, or an empty one.
  """

  def __init__(self, tokenizer, strings: Sequence[str], *, eos_ids: Sequence[int] = ()):
    strings = (strings,) if isinstance(strings, str) else tuple(strings)
    if not strings or not all(strings):
      raise ConfigError(
          f"StopStrings: strings = {strings!r}: allowed are one or more texts, none of them empty. "
          "Fix: leave the empty ones out, or use no StopStrings.")

    def holds_one(text: str) -> bool:
      return any(string in text for string in strings)

    super().__init__(tokenizer, eos_ids, strings, holds_one)

  def step(self, row_id: int, turn_ids: Sequence[int], last: bool = False) -> Stop:
    text, _ = self.split(turn_ids)
    return Stop(STOP_STRING if self._complete(text) else STOP_TOKEN)
