"""Environments by name: a tool whose calls are run and answered, or a plugin's own."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl_llm.fields import ConfigError, did_you_mean
from jaxrl_llm.registry import ENVIRONMENTS
from jaxrl_llm.rollouts.environment_table import OF_TOOL, register
from jaxrl_llm.rollouts.protocols import PROTOCOLS, CallProtocol, Tag
from jaxrl_llm.rollouts.tools import TOOLS, Tool, ToolResult, make_tool
from jaxrl_llm.rollouts.turn_ends import (
  Continue,
  Environment,
  Stop,
  StopStrings,
  TurnEnvironment,
  before_stop,
)
from jaxrl_llm.types import STOP_ENVIRONMENT, STOP_TOKEN, STOP_TURNS

__all__ = [
    "Continue", "ENVIRONMENTS", "Environment", "OF_TOOL", "Stop", "StopStrings", "TOOLS",
    "ToolEnvironment", "TurnEnvironment", "before_stop", "make_environment", "from_plugin",
    "register"
]


class ToolEnvironment(TurnEnvironment):
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
    added_vocab = tokenizer.get_added_vocab()
    name_patterns = [re.escape(text) for text in added_vocab if text.strip()]
    # A lookahead, because names may overlap.
    self._named_text = re.compile(f"(?={'|'.join(name_patterns)})") if name_patterns else None
    self._named_ids = {added_vocab[text] for text in added_vocab if text.strip()}
    self._check_alphabet()
    self._before, self._after = (self.ids(text) for text in (protocol.before, protocol.after))
    self._room = max_output_tokens - len(self._before) - len(self._after)
    min_tokens = len(self._plain(protocol.body(ToolResult("ok", "0" * 10_000), 0)))
    if self._room < min_tokens:
      raise ConfigError(
          f"ToolEnvironment: max_output_tokens = {max_output_tokens}: the shortest output of "
          f"protocol {type(protocol).__name__} has {max_output_tokens - self._room + min_tokens} "
          "tokens. Fix: at least that many.")

  def step(self, row_id: int, turn_ids: Sequence[int], last: bool = False) -> Continue | Stop:
    """See `Environment`."""
    text, is_over = self.split(turn_ids)
    call = self.protocol.find(text)
    reason = STOP_TOKEN if is_over else STOP_ENVIRONMENT
    if self.protocol.finished(text if call is None else text[:call.start]):
      return Stop(reason)
    if call is None:
      return Stop(reason, void=self.protocol.needs_answer)
    if last:
      return Stop(STOP_TURNS)
    tool_result = self.tool.run(call.argument) if call.error is None else ToolResult("error",
                                                                                     call.error)
    if tool_result.status == "unavailable":
      return Stop(STOP_ENVIRONMENT, void=True)
    body, output = self._output(tool_result)
    ids = (*self._before, *output, *self._after)
    return Stop(STOP_ENVIRONMENT, ids=ids) if self.protocol.finished(body) else Continue(ids)

  def stated(self, turn_ids: Sequence[int], cut: bool = False) -> str:
    """Returns the text of a turn that a verifier reads; see `CallProtocol.stated`."""
    return self.protocol.stated(self.split(turn_ids)[0], cut)

  def close(self) -> None:
    self.tool.close()

  def _output(self, tool_result: ToolResult) -> tuple[str, list[int]]:
    """Returns (the output, shortened until its ids fit, and these ids)."""
    text = self.protocol.body(tool_result)
    ids, chars = self._plain(text), len(text)
    while len(ids) > self._room:
      chars = min(chars - 1, chars * self._room // len(ids))
      text = self.protocol.body(tool_result, chars)
      ids = self._plain(text)
    return text, ids

  def _plain(self, text: str) -> list[int]:
    """Returns ids of a text, none of which is a named token.

    The text is encoded in pieces that are cut inside of names; names of one letter are left out.
    """
    text = text.encode("utf-8", "replace").decode()
    named_tokens = self._named_text.finditer(text) if self._named_text else ()
    cuts = [match.start() + 1 for match in named_tokens]
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [i for piece in pieces for i in self.ids(piece) if i not in self._named_ids]

  def _check_alphabet(self) -> None:
    """Checks that the tokenizer gives back every text that the protocol writes."""
    for text in (self.protocol.before, self.protocol.characters, self.protocol.after,
                 *self.protocol.markers):
      if self._text(self.ids(text)).strip() != text.strip():
        raise ConfigError(
            f"ToolEnvironment: protocol {type(self.protocol).__name__} writes {text!r}, which the "
            "tokenizer does not give back. Fix: a tokenizer with these characters, or another "
            "protocol.")


class ToolCalls(NamedTuple):
  """Settings of a tool call.

  Attributes:
    numbers: an instance of the tool's numbers; None: their defaults.
    workers: threads that call it.
  """

  numbers: Any = None
  workers: int = 1


def make_environment(tokenizer, protocol: str, tool: str, *, eos_ids: Sequence[int],
                     max_output_tokens: int, calls: ToolCalls = ToolCalls()) -> ToolEnvironment:
  """Returns the environment of a tool and a protocol, by their names.

  Args:
    protocol: inline, fence or tag.
    tool: calculator, python, or a plugin's.

  Raises:
    ConfigError: an unknown name, or a setting that the tool or the environment refuses.
  """
  if protocol not in PROTOCOLS:
    raise ConfigError(
        f"protocol = {protocol!r}: allowed are {', '.join(PROTOCOLS)}."
        f"{did_you_mean(str(protocol), PROTOCOLS)} Fix: protocol={next(iter(PROTOCOLS))}, or "
        "another of these.")
  tool_instance = make_tool(tool, *calls)
  notation = Tag(tool, TOOLS[tool].parameter) if protocol == "tag" else PROTOCOLS[protocol]()
  try:
    return ToolEnvironment(tokenizer, tool_instance, notation,  # type: ignore[arg-type]
                           eos_ids=eos_ids, max_output_tokens=max_output_tokens)
  except ConfigError:
    tool_instance.close()
    raise


def from_plugin(name: str, tokenizer, eos_ids: Sequence[int], max_output_tokens: int,
                numbers) -> Environment:
  """Returns the environment of a plugin.

  Raises:
    ConfigError: an unknown name, an environment that does not start, or one that lacks a method.
  """
  with ENVIRONMENTS.blamed(name):
    environment = ENVIRONMENTS[name].function(tokenizer, eos_ids, max_output_tokens, numbers)
    lacking = [method for method in ("turn_end", "step", "close")
               if not callable(getattr(environment, method, None))]
    if lacking:
      raise TypeError("an environment has turn_end, step and close; this "
                      f"{type(environment).__name__} lacks {', '.join(lacking)}")
    return environment
