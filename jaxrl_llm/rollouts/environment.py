"""What stands between two turns of a policy: when a turn is over, and what follows it, as token
ids.

The engine asks `turn_end` after each chunk and `step`, in another thread, for each turn that is
over. Ids that the policy drew are kept as they are and never encoded anew; what an environment
inserts is encoded by itself.
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

# characters beside a marker's that a look back takes in: the first ones may be parts of a broken
# one
SPARE = 4


@dataclasses.dataclass(frozen=True)
class Continue:
  """ids: put behind the turn, with mask False; the policy's next turn follows."""

  ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Stop:
  """The row ends.

  Attributes:
    reason: a STOP_* of `types`.
    void: the row says nothing about the policy, or is no attempt: leave it out whole.
    ids: put behind the turn, with mask False: an output that is the answer, which a verifier reads.
  """

  reason: int
  void: bool = False
  ids: tuple[int, ...] = ()


class Environment(Protocol):
  """Ends turns and answers them; results depend on the arguments alone (and on the tool, for what
  it may not fix).
  """

  def turn_end(self, turn_ids: Sequence[int], seen: int = 0) -> int | None:
    """How many of the turn's tokens to keep, because the turn is over with them; None while it goes
    on. Cheap.

    Args:
      turn_ids: what the policy drew since its turn began, a stop token included.
      seen: tokens with which an earlier call gave None; saves time, changes no result.
    """
    ...

  def step(self, row_id: int, turn_ids: Sequence[int], last: bool = False) -> Continue | Stop:
    """What follows a turn, of which `turn_ids` are the kept tokens. May take long; safe to call
    from many threads.

    `last`: no turn may follow, so a Stop is returned, and no tool runs.
    """
    ...

  def close(self) -> None: ...


class _Turns:
  """Ends of turns: the first stop token, or before it the first text in which `complete` finds what
  it looks for.

  Args:
    complete: whether a text holds an end; if it does, so must every text that continues it.
    markers: texts, one of which stands at each end.
  """

  def __init__(self, tokenizer, eos_ids: Sequence[int], markers: Sequence[str],
               complete: Callable[[str], bool]):
    self._tokenizer, self._eos_ids, self._complete = tokenizer, frozenset(eos_ids), complete
    self._markers = tuple(markers)
    self._overlap = max(len(marker.encode()) for marker in markers) + SPARE
    # Keeps the threads of one environment apart. Whoever shares the tokenizer beside it (prompts,
    # verdicts) is not held up: encoding and decoding go side by side as long as nobody changes the
    # tokenizer's settings, and nobody does.
    self._lock = threading.Lock()

  def turn_end(self, turn_ids: Sequence[int], seen: int = 0) -> int | None:
    ended = next((i for i in range(seen, len(turn_ids)) if int(turn_ids[i]) in self._eos_ids), None)
    ids = [int(i) for i in (turn_ids if ended is None else turn_ids[:ended])]
    tail = self._text(ids[self._back(ids, seen):])
    if any(marker in tail for marker in self._markers) and self._complete(self._text(ids)):
      return 1 + bisect.bisect_left(range(1, len(ids)), True,
                                    key=lambda n: self._complete(self._text(ids[:n])))
    return None if ended is None else ended + 1

  def _back(self, ids: Sequence[int], seen: int) -> int:
    """Where a look begins, so that it takes in any marker that begins before `seen`; some ids stand
    for no text.
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
    """The text of a turn, and whether a stop token, which is left out of it, ended the turn."""
    ids = [int(i) for i in turn_ids]
    ended = bool(ids) and ids[-1] in self._eos_ids
    return self._text(ids[:-1] if ended else ids), ended


def before_stop(text: str, strings: Sequence[str]) -> str:
  """The text in front of the stop string that begins first; all of it where there is none."""
  return text[:min((at for string in strings if (at := text.find(string)) >= 0), default=len(text))]


class StopStrings(_Turns):
  """One turn that ends with the first of some texts; the token in which the text ends is kept
  whole.

  The row ends with STOP_STRING and keeps the string, which the policy drew; `before_stop` takes it
  out of the text.

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
    super().__init__(tokenizer, eos_ids, strings,
                     lambda text: any(string in text for string in strings))

  def step(self, row_id: int, turn_ids: Sequence[int], last: bool = False) -> Stop:
    text, _ = self._split(turn_ids)
    return Stop(STOP_STRING if self._complete(text) else STOP_TOKEN)

  def close(self) -> None:
    """Nothing is held."""


class ToolEnvironment(_Turns):
  """Runs the first complete call of each turn, and inserts the tool's output as `protocol` writes
  it.

    the policy's text before the call holds the final answer   Stop, STOP_ENVIRONMENT
    the tool's output holds it                                 Stop, STOP_ENVIRONMENT, with the output
    the tool itself failed (status `unavailable`)              Stop, STOP_ENVIRONMENT, void
    a call in the last turn, which is not run                  Stop, STOP_TURNS
    a call                                                     Continue
    a stop token without a call                                Stop, STOP_TOKEN; void where the protocol asks for an
                                                               answer and the turn has none

  Only what is left of an output after it was cut counts as an answer: what ends the row is in the
  row. Text of the output that spells a token which the tokenizer knows by name (a special token, a
  tag of the chat template) is encoded as ordinary text, so a program cannot end a turn or open one.

  Args:
    tokenizer: a Hugging Face tokenizer.
    tool: closed by `close`; its `run` must be safe to call from several threads.
    protocol: the notation (see `protocols`).
    eos_ids: stop tokens of the policy.
    max_output_tokens: most ids that one step inserts, what stands around the output included.

  Raises:
    ConfigError: a limit that the shortest output exceeds, or a tokenizer that cannot write what is
    inserted.
  """

  def __init__(self, tokenizer, tool: Tool, protocol: CallProtocol, *, eos_ids: Sequence[int],
               max_output_tokens: int):
    super().__init__(tokenizer, eos_ids, protocol.markers,
                     lambda text: protocol.find(text) is not None)
    self.tool, self.protocol = tool, protocol
    named = tokenizer.get_added_vocab()
    spelled = [re.escape(text) for text in named if text.strip()]
    # overlapping ones, too
    self._named_text = re.compile(f"(?={'|'.join(spelled)})") if spelled else None
    self._named_ids = {named[text] for text in named if text.strip()}
    self._check_alphabet()
    self._before, self._after = (self._ids(text) for text in (protocol.before, protocol.after))
    self._room = max_output_tokens - len(self._before) - len(self._after)
    least = len(self._plain(protocol.body(ToolResult("ok", "0" * 10_000), 0)))
    if self._room < least:
      raise ConfigError(
          f"ToolEnvironment: max_output_tokens = {max_output_tokens}: the shortest output of "
          "protocol "
          f"{type(protocol).__name__} has {max_output_tokens - self._room + least} tokens. "
          f"Fix: at least that many.")

  def step(self, row_id: int, turn_ids: Sequence[int], last: bool = False) -> Continue | Stop:
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
    """What a verifier reads of a turn, without a stop token; see `CallProtocol.stated`."""
    return self.protocol.stated(self._split(turn_ids)[0], cut)

  def close(self) -> None:
    self.tool.close()

  def _output(self, result: ToolResult) -> tuple[str, list[int]]:
    """The output, from which characters are taken out until its ids fit, and these."""
    text = self.protocol.body(result)
    ids, chars = self._plain(text), len(text)
    while len(ids) > self._room:
      chars = min(chars - 1, chars * self._room // len(ids))
      text = self.protocol.body(result, chars)
      ids = self._plain(text)
    return text, ids

  def _plain(self, text: str) -> list[int]:
    """Ids of a text without a token known by name: text is cut inside of names, those of one letter
    are left out.
    """
    text = text.encode("utf-8", "replace").decode()
    cuts = [match.start() + 1 for match in self._named_text.finditer(text)
           ] if self._named_text else []
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [i for piece in pieces for i in self._ids(piece) if i not in self._named_ids]

  def _ids(self, text: str) -> list[int]:
    with self._lock:
      return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

  def _check_alphabet(self) -> None:
    for text in (self.protocol.before, self.protocol.characters, self.protocol.after,
                 *self.protocol.markers):
      if self._text(self._ids(text)).strip() != text.strip():
        raise ConfigError(
            f"ToolEnvironment: protocol {type(self.protocol).__name__} writes {text!r}, which the "
            "tokenizer does not give back. Fix: a tokenizer with these characters, or another "
            "protocol."
        )


TOOLS = {"calculator": (Calculator, "expression"), "python": (PythonSandbox, "code")}


def make_environment(tokenizer, protocol: str, tool: str, *, eos_ids: Sequence[int],
                     max_output_tokens: int, **options) -> ToolEnvironment:
  """A tool and a notation by their names, as a task gives them (`task.protocol`, `task.tool`).

  Args:
    protocol: inline, fence or tag.
    tool: calculator or python.
    options: arguments of the tool.

  Raises:
    ConfigError: an unknown name, or what the parts refuse.
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
