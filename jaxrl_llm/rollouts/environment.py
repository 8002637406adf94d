"""Environments: they decide when a turn of the policy is over, and which token ids follow it.

The engine asks `turn_end` after each chunk, and `step`, in another thread, after each turn. Sampled
ids are kept as they are and never encoded again; inserted text is encoded separately.
"""

import bisect
import dataclasses
import re
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from jaxrl_llm.fields import ConfigError, did_you_mean
from jaxrl_llm.rollouts.protocols import PROTOCOLS, CallProtocol, Tag
from jaxrl_llm.rollouts.tools import Calculator, PythonSandbox, Tool, ToolResult
from jaxrl_llm.types import STOP_ENVIRONMENT, STOP_STRING, STOP_TOKEN, STOP_TURNS

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
  """Ends turns and answers them. Results depend only on the arguments and on the tool."""

  def turn_end(self, turn_ids: Sequence[int], seen: int = 0) -> int | None:
    """Returns how many of the turn's tokens to keep if it is over, or None if it goes on.

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


class _Turns:
  """Ends a turn at its first stop token, or earlier if its text is complete.

  Args:
    complete: text -> whether a turn with this text is over. If it is, it must be for every text
      that continues it.
    markers: texts, one of which stands at the end of every complete turn.
  """

  def __init__(self, tokenizer, eos_ids: Sequence[int], markers: Sequence[str],
               complete: Callable[[str], bool]):
    self._tokenizer, self._eos_ids, self._complete = tokenizer, frozenset(eos_ids), complete
    self._markers = tuple(markers)
    self._overlap = max(len(marker.encode()) for marker in markers) + SPARE
    # Only for the threads of one environment. Others that share the tokenizer (prompts, verdicts)
    # need no lock, because nobody changes the tokenizer's settings.
    self._lock = threading.Lock()

  def turn_end(self, turn_ids: Sequence[int], seen: int = 0) -> int | None:
    """See `Environment`."""
    ended = next((i for i in range(seen, len(turn_ids)) if int(turn_ids[i]) in self._eos_ids), None)
    ids = [int(i) for i in (turn_ids if ended is None else turn_ids[:ended])]
    tail = self._text(ids[self._back(ids, seen):])
    if any(marker in tail for marker in self._markers) and self._complete(self._text(ids)):

      def complete_with(count: int) -> bool:
        return self._complete(self._text(ids[:count]))

      return 1 + bisect.bisect_left(range(1, len(ids)), True, key=complete_with)
    return None if ended is None else ended + 1

  def _back(self, ids: Sequence[int], seen: int) -> int:
    """Index to decode from again, so that a marker split across `seen` is still found.

    Some ids have no text, so it may take more ids than the marker has characters.
    """
    count = self._overlap
    while count < seen and len(self._text(ids[seen - count:seen])) < self._overlap:
      count *= 2
    return max(0, seen - count)

  def _text(self, ids: Sequence[int]) -> str:
    with self._lock:
      return self._tokenizer.decode(ids, skip_special_tokens=False,
                                    clean_up_tokenization_spaces=False)

  def _split(self, turn_ids: Sequence[int]) -> tuple[str, bool]:
    """Returns (text of a turn without its stop token, whether a stop token ended the turn)."""
    ids = [int(i) for i in turn_ids]
    ended = bool(ids) and ids[-1] in self._eos_ids
    return self._text(ids[:-1] if ended else ids), ended


def before_stop(text: str, strings: Sequence[str]) -> str:
  """Returns the text before the first stop string, or all of it if there is none."""
  found = (text.find(string) for string in strings)
  return text[:min((at for at in found if at >= 0), default=len(text))]


class StopStrings(_Turns):
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
    text, _ = self._split(turn_ids)
    return Stop(STOP_STRING if self._complete(text) else STOP_TOKEN)

  def close(self) -> None:
    """Does nothing, because nothing is held."""


class ToolEnvironment(_Turns):
  """Runs the first complete call of each turn, and inserts the tool's output as `protocol` writes
  it.

    the text before the call holds the final answer   Stop, STOP_ENVIRONMENT
    the tool's output holds it                        Stop, STOP_ENVIRONMENT, with the output
    the tool itself failed (status `unavailable`)     Stop, STOP_ENVIRONMENT, void
    a call in the last turn, which is not run         Stop, STOP_TURNS
    a call                                            Continue
    a stop token without a call                       Stop, STOP_TOKEN; void if the protocol needs
                                                      an answer and the turn has none

  An output that was cut holds an answer only if the part that was kept does, so that the row shows
  what ended it. Output text that spells a named token of the tokenizer (a special token, a tag of
  the chat template) is encoded as ordinary text, so a program cannot end a turn or open one.

  Args:
    tokenizer: a Hugging Face tokenizer.
    tool: closed by `close`; its `run` must be safe to call from several threads.
    protocol: the notation, from `protocols`.
    eos_ids: stop tokens of the policy.
    max_output_tokens: ids that one step inserts at most, including the protocol's text around the
      output.

  Raises:
    ConfigError: the limit is below the shortest output, or the tokenizer cannot write the inserted
      text.
  """

  def __init__(self, tokenizer, tool: Tool, protocol: CallProtocol, *, eos_ids: Sequence[int],
               max_output_tokens: int):

    def holds_call(text: str) -> bool:
      return protocol.find(text) is not None

    super().__init__(tokenizer, eos_ids, protocol.markers, holds_call)
    self.tool, self.protocol = tool, protocol
    named = tokenizer.get_added_vocab()
    spelled = [re.escape(text) for text in named if text.strip()]
    # A lookahead, because names may overlap.
    self._named_text = re.compile(f"(?={'|'.join(spelled)})") if spelled else None
    self._named_ids = {named[text] for text in named if text.strip()}
    self._check_alphabet()
    self._before, self._after = (self._ids(text) for text in (protocol.before, protocol.after))
    self._room = max_output_tokens - len(self._before) - len(self._after)
    least = len(self._plain(protocol.body(ToolResult("ok", "0" * 10_000), 0)))
    if self._room < least:
      raise ConfigError(
          f"ToolEnvironment: max_output_tokens = {max_output_tokens}: the shortest output of "
          f"protocol {type(protocol).__name__} has {max_output_tokens - self._room + least} "
          "tokens. Fix: at least that many.")

  def step(self, row_id: int, turn_ids: Sequence[int], last: bool = False) -> Continue | Stop:
    """See `Environment`."""
    text, ended = self._split(turn_ids)
    call = self.protocol.find(text)
    reason = STOP_TOKEN if ended else STOP_ENVIRONMENT
    if self.protocol.finished(text if call is None else text[:call.start]):
      return Stop(reason)
    if call is None:
      return Stop(reason, void=self.protocol.needs_answer)
    if last:
      return Stop(STOP_TURNS)
    result = self.tool.run(call.argument) if call.error is None else ToolResult("error", call.error)
    if result.status == "unavailable":
      return Stop(STOP_ENVIRONMENT, void=True)
    shown, output = self._output(result)
    ids = (*self._before, *output, *self._after)
    return Stop(STOP_ENVIRONMENT, ids=ids) if self.protocol.finished(shown) else Continue(ids)

  def stated(self, turn_ids: Sequence[int], cut: bool = False) -> str:
    """Returns the text of a turn that a verifier reads; see `CallProtocol.stated`."""
    return self.protocol.stated(self._split(turn_ids)[0], cut)

  def close(self) -> None:
    self.tool.close()

  def _output(self, result: ToolResult) -> tuple[str, list[int]]:
    """Returns (the output, shortened until its ids fit, and these ids)."""
    text = self.protocol.body(result)
    ids, chars = self._plain(text), len(text)
    while len(ids) > self._room:
      chars = min(chars - 1, chars * self._room // len(ids))
      text = self.protocol.body(result, chars)
      ids = self._plain(text)
    return text, ids

  def _plain(self, text: str) -> list[int]:
    """Returns ids of a text, none of which is a named token.

    The text is encoded in pieces that are cut inside of names; names of one letter are left out.
    """
    text = text.encode("utf-8", "replace").decode()
    found = self._named_text.finditer(text) if self._named_text else ()
    cuts = [match.start() + 1 for match in found]
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [i for piece in pieces for i in self._ids(piece) if i not in self._named_ids]

  def _ids(self, text: str) -> list[int]:
    with self._lock:
      return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

  def _check_alphabet(self) -> None:
    """Checks that the tokenizer gives back every text that the protocol writes."""
    for text in (self.protocol.before, self.protocol.characters, self.protocol.after,
                 *self.protocol.markers):
      if self._text(self._ids(text)).strip() != text.strip():
        raise ConfigError(
            f"ToolEnvironment: protocol {type(self.protocol).__name__} writes {text!r}, which the "
            "tokenizer does not give back. Fix: a tokenizer with these characters, or another "
            "protocol.")


TOOLS = {"calculator": (Calculator, "expression"), "python": (PythonSandbox, "code")}


def make_environment(tokenizer, protocol: str, tool: str, *, eos_ids: Sequence[int],
                     max_output_tokens: int, **options) -> ToolEnvironment:
  """Returns the environment of a tool and a protocol, by the names that tasks give them.

  Args:
    protocol: inline, fence or tag.
    tool: calculator or python.
    options: arguments of the tool.

  Raises:
    ConfigError: an unknown name, or a setting that the tool or the environment refuses.
  """
  for key, name, table in (("protocol", protocol, PROTOCOLS), ("tool", tool, TOOLS)):
    if name not in table:
      raise ConfigError(
          f"{key} = {name!r}: allowed are {', '.join(table)}.{did_you_mean(str(name), table)} "
          f"Fix: {key}={next(iter(table))}, or another of these.")
  make, parameter = TOOLS[tool]
  notation = Tag(tool, parameter) if protocol == "tag" else PROTOCOLS[protocol]()
  made = make(**options)
  try:
    return ToolEnvironment(tokenizer, made, notation, eos_ids=eos_ids,
                           max_output_tokens=max_output_tokens)
  except ConfigError:
    made.close()
    raise
