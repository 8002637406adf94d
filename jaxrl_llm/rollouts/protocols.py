"""Text formats of a policy's tool calls and of the tool's answers."""

import dataclasses
import json
import re
import typing

from jaxrl_llm.sandbox.results import ToolResult, shorten

BOX = "\\boxed{"
_OPENED, _CLOSED = re.compile(r"```([\w+-]*)[ \t]*\n"), re.compile(r"^[ \t]*```", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Call:
  """One complete call in a text.

  Attributes:
    start, end: characters of the text that the call covers.
    argument: of the tool.
    error: text for the row if no tool can run; None: run the tool.
  """

  start: int
  end: int
  argument: str
  error: str | None = None


class CallProtocol(typing.Protocol):
  """A notation for calls; every method is a pure function.

  Attributes:
    markers: every complete call ends with one of these texts.
    before, after: inserted around the tool's output; may hold special tokens, such as the end of a
      chat turn.
    characters: further characters that the tokenizer must be able to write.
    needs_answer: whether a last turn that is not `finished` makes the row void.
  """

  markers: tuple[str, ...]
  before: str
  after: str
  characters: str
  needs_answer: bool

  def find(self, text: str) -> Call | None:
    """Returns the first complete call or None. However the text continues, the call is the same."""
    ...

  def body(self, tool_result: ToolResult, chars: int | None = None) -> str:
    """Returns the text of the result for the row, of about `chars` characters at most."""
    ...

  def finished(self, text: str) -> bool:
    """Returns whether the text holds the final answer, so that no further turn follows."""
    ...

  def stated(self, text: str, cut: bool = False) -> str:
    """Returns the text of a turn that a verifier reads; if `needs_answer`, without calls.

    Args:
      cut: whether a limit ended the turn, so that its last call may be incomplete.
    """
    ...


def render(protocol: CallProtocol, tool_result: ToolResult) -> str:
  """Returns the full text that follows a call, not shortened by a limit on tokens."""
  return protocol.before + protocol.body(tool_result) + protocol.after


@dataclasses.dataclass(frozen=True)
class Inline:
  """`[123*456]` becomes `[123*456]56088;`: a call inside a line, for tokenizers of few characters.

  Inserts a number, or a question mark for an error, a number that is too long, or other text. A
  turn without a call is the answer, whatever it says.
  """

  markers: tuple[str, ...] = ("]",)
  before: str = ""
  after: str = ";"
  characters: str = "0123456789-.?"
  needs_answer: bool = False

  def find(self, text: str) -> Call | None:
    match = re.search(r"\[([^\[\]]*)\]", text)
    return Call(*match.span(), match[1]) if match else None

  def body(self, tool_result: ToolResult, chars: int | None = None) -> str:
    number = tool_result.status == "ok" and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?",
                                                         tool_result.output.strip())
    return number[0] if number and (chars is None or len(number[0]) <= chars) else "?"

  def finished(self, text: str) -> bool:
    return False

  def stated(self, text: str, cut: bool = False) -> str:
    return text


@dataclasses.dataclass(frozen=True)
class Fence:
  r"""Python in a code fence; \boxed{ in the policy's text or in the program's output ends the row.

  A block opens with three backticks, `py`, `python` or nothing, and a newline. It closes with three
  backticks at the beginning of a line. Blocks in other languages are skipped. The first and last
  `output_chars / 2` characters of an output are kept, and an error's last line. A turn with neither
  a block nor a box makes the row void. A box inside the block is not an answer yet: the program may
  print it, and the row then ends with that output. No verifier reads the block. A block that is
  still open at a stop token is text.

  Source: SimpleTIR, arXiv 2509.02479, and its public code. Our own choices: a box in the code or in
  the dropped part of an output does not count, and blocks in other languages do not shift the
  pairing of fences. The harness's function `final_answer` is left out: a program prints its box.
  """

  output_chars: int = 512
  markers: tuple[str, ...] = ("```",)
  before: str = "\nCode execution result: "
  after: str = "\n"
  characters: str = ""
  needs_answer: bool = True

  def find(self, text: str) -> Call | None:
    opening = self._find_block(text)
    closing = opening and _CLOSED.search(text, opening.end())
    if not closing:
      return None
    return Call(opening.start(), closing.end(), text[opening.end():closing.start()])

  def stated(self, text: str, cut: bool = False) -> str:
    opening = self._find_block(text)
    call = opening and (cut or _CLOSED.search(text, opening.end()))
    return text[:opening.start()] if call else text

  def _find_block(self, text: str) -> re.Match | None:
    """Finds the line that opens the first block of Python."""
    position = 0
    while opening := _OPENED.search(text, position):
      if opening[1].lower() in ("", "py", "python"):
        return opening
      closing = _CLOSED.search(text, opening.end())
      if closing is None:
        return None
      position = closing.end()
    return None

  def body(self, tool_result: ToolResult, chars: int | None = None) -> str:
    output, error = tool_result.output, ""
    if tool_result.status != "ok":  # its last line says what happened
      output, newline, last = tool_result.output.rpartition("\n")
      error = newline + last
    text = shorten(output, None, self.output_chars) + error
    return text if chars is None else shorten(text, None, chars)

  def finished(self, text: str) -> bool:
    return BOX in text


@dataclasses.dataclass(frozen=True)
class Tag:
  """`<tool_call>{"name": .., "arguments": {..}}</tool_call>`; the user answers: `<tool_response>`.

  The turn ends with the first call, so the inserted text begins with the end of the assistant's
  turn and ends with the beginning of its next one. A call that is not such an object, or that names
  another tool, is answered by an error. A turn without a call is the answer.

  Source: Qwen3's chat template. For prompts without thinking, an empty thinking block is appended
  to `after`.

  Attributes:
    name: name of the tool.
    parameter: name of its only argument, a text.
  """

  name: str = "python"
  parameter: str = "code"
  markers: tuple[str, ...] = ("</tool_call>",)
  before: str = "<|im_end|>\n<|im_start|>user\n<tool_response>\n"
  after: str = "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
  characters: str = ""
  needs_answer: bool = False

  def find(self, text: str) -> Call | None:
    match = re.search(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)
    return Call(*match.span(), *self._argument(match[1])) if match else None

  def _argument(self, text: str) -> tuple[str, str | None]:
    try:
      call = json.loads(text)
    except (ValueError, RecursionError):
      return "", "error: a tool call is a JSON object with name and arguments"
    name = call.get("name") if isinstance(call, dict) else None
    arguments = call.get("arguments") if isinstance(call, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
      return "", "error: a tool call is a JSON object with name and arguments"
    if name != self.name:
      return "", f"error: there is no tool of that name; the tool is {self.name}"
    if set(arguments) != {self.parameter} or not isinstance(arguments[self.parameter], str):
      return "", f"error: {self.name} takes one text, {self.parameter}"
    return arguments[self.parameter], None

  def body(self, tool_result: ToolResult, chars: int | None = None) -> str:
    return tool_result.output if chars is None else shorten(tool_result.output, None, chars)

  def finished(self, text: str) -> bool:
    return False

  def stated(self, text: str, cut: bool = False) -> str:
    return text


PROTOCOLS = {"inline": Inline, "fence": Fence, "tag": Tag}
