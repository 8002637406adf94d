"""How a policy writes a call of a tool, and how the tool's answer is written behind it: text only,
no token ids.
"""

import dataclasses
import json
import re
import typing

from jaxrl_llm.rollouts.tools.results import ToolResult, shorten

BOX = "\\boxed{"
_OPENED, _CLOSED = re.compile(r"```([\w+-]*)[ \t]*\n"), re.compile(r"^[ \t]*```", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Call:
  """One complete call in a text.

  Attributes:
    start, end: characters of the text that the call covers.
    argument: what the tool is given.
    error: why no tool can be run, as text for the row; None: run it.
  """

  start: int
  end: int
  argument: str
  error: str | None = None


class CallProtocol(typing.Protocol):
  """A notation for calls; every method is a pure function.

  Attributes:
    markers: every complete call ends with one of these texts.
    before, after: inserted around the tool's output; may hold special tokens such as the ends of
      chat turns.
    characters: what a tokenizer must be able to write beside them.
    needs_answer: whether a last turn in which nothing is `finished` is void.
  """

  markers: tuple[str, ...]
  before: str
  after: str
  characters: str
  needs_answer: bool

  def find(self, text: str) -> Call | None:
    """The first complete call. A text that has one has the same one however it goes on."""
    ...

  def body(self, result: ToolResult, chars: int | None = None) -> str:
    """What stands for the result in the row; where `chars` is given, of about that many characters
    at most.
    """
    ...

  def finished(self, text: str) -> bool:
    """Whether the text holds the final answer, so that no further turn follows."""
    ...

  def stated(self, text: str, cut: bool = False) -> str:
    """What of a turn a verifier reads: where `needs_answer`, no code of a call.

    `cut`: a limit ended the turn, so that a call which it had begun may be incomplete.
    """
    ...


def render(protocol: CallProtocol, result: ToolResult) -> str:
  """All the text that follows a call, as long as no limit on tokens shortens it."""
  return protocol.before + protocol.body(result) + protocol.after


@dataclasses.dataclass(frozen=True)
class Inline:
  """`[123*456]` becomes `[123*456]56088;`: a call inside a line, for tokenizers of few characters.

  Only a number is inserted; an error, a cut number or anything else is a question mark. A turn
  without a call is the answer, whatever it says.
  """

  markers: tuple[str, ...] = ("]",)
  before: str = ""
  after: str = ";"
  characters: str = "0123456789-.?"
  needs_answer: bool = False

  def find(self, text: str) -> Call | None:
    match = re.search(r"\[([^\[\]]*)\]", text)
    return match and Call(*match.span(), match[1])

  def body(self, result: ToolResult, chars: int | None = None) -> str:
    number = result.status == "ok" and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", result.output.strip())
    return number[0] if number and (chars is None or len(number[0]) <= chars) else "?"

  def finished(self, text: str) -> bool:
    return False

  def stated(self, text: str, cut: bool = False) -> str:
    return text


@dataclasses.dataclass(frozen=True)
class Fence:
  r"""Python in a code fence; the row ends with \boxed{ in the policy's text or in the program's
  output.

  A block opens with three backticks, `py`, `python` or nothing, and a newline; it closes with three
  backticks at the beginning of a line. Blocks in other languages are passed over whole. Of the
  output the first and last `output_chars / 2` characters are kept, and the line that says what went
  wrong. A turn with neither a block nor a box is void. A box inside the block itself is not an
  answer yet: the program may print it, and its output, box included, is then the end of the row. No
    verifier reads the block. A block that is open at a stop token is text.

  Source: SimpleTIR, arXiv 2509.02479, methods V5.1 and its public code; that a box in the code, or
  one that was cut out of the output, does not count, and that blocks in other languages do not
  shift the pairing of fences, are our own choices. The harness's function `final_answer` is left
  out: a program prints its box.
  """

  output_chars: int = 512
  markers: tuple[str, ...] = ("```",)
  before: str = "\nCode execution result: "
  after: str = "\n"
  characters: str = ""
  needs_answer: bool = True

  def find(self, text: str) -> Call | None:
    opened = self._opened(text)
    closed = opened and _CLOSED.search(text, opened.end())
    return closed and Call(opened.start(), closed.end(), text[opened.end():closed.start()])

  def stated(self, text: str, cut: bool = False) -> str:
    opened = self._opened(text)
    call = opened and (cut or _CLOSED.search(text, opened.end()))
    return text[:opened.start()] if call else text

  def _opened(self, text: str) -> re.Match | None:
    """The line that opens the first block of Python."""
    at = 0
    while opened := _OPENED.search(text, at):
      if opened[1].lower() in ("", "py", "python"):
        return opened
      closed = _CLOSED.search(text, opened.end())
      if closed is None:
        return None
      at = closed.end()
    return None

  def body(self, result: ToolResult, chars: int | None = None) -> str:
    printed, error = result.output, ""
    if result.status != "ok":  # its last line says what happened
      printed, newline, last = result.output.rpartition("\n")
      error = newline + last
    text = shorten(printed, None, self.output_chars) + error
    return text if chars is None else shorten(text, None, chars)

  def finished(self, text: str) -> bool:
    return BOX in text


@dataclasses.dataclass(frozen=True)
class Tag:
  """`<tool_call>{"name": .., "arguments": {..}}</tool_call>`, answered by a user turn with a
  `<tool_response>`.

  The turn ends with the first call, so the inserted text begins with the end of the assistant's
  turn and ends with the beginning of its next. A call that is no such object, or of another tool,
  is answered by an error. A turn without a call is the answer.

  Source: Qwen3's chat template, methods V4; a thinking-free prompt appends an empty thinking block
  to `after`.

  Attributes:
    name: of the tool.
    parameter: the one argument that it takes, a text.
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
    return match and Call(*match.span(), *self._argument(match[1]))

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

  def body(self, result: ToolResult, chars: int | None = None) -> str:
    return result.output if chars is None else shorten(result.output, None, chars)

  def finished(self, text: str) -> bool:
    return False

  def stated(self, text: str, cut: bool = False) -> str:
    return text


PROTOCOLS = {"inline": Inline, "fence": Fence, "tag": Tag}
