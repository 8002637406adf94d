"""What a tool returns, the protocol of a tool, and the text that a token row gets from a finished
program.
"""

import dataclasses
import os
import re
import signal
from collections.abc import Sequence
from typing import Protocol

STATUSES = ("ok", "error", "timeout", "memory", "killed", "unavailable")
CUT = "\n[... output cut ...]\n"
TIMEOUT = "timeout: the program was stopped at its time limit"
ERROR_CHARS = 300  # of the line that says what went wrong
_ADDRESS = re.compile(r" at 0x[0-9a-f]{4,}")


@dataclasses.dataclass(frozen=True)
class ToolResult:
  """One call of a tool.

  Attributes:
    status: `ok`; `error` (the text was refused, or the program raised or left with a status other
      than 0); `timeout` (wall-clock or processor time); `memory`; `killed` (by a signal, which the
      output names); `unavailable` (the tool
      itself failed, which says nothing about the text: count it, or void the row).
    output: what goes into the token row: deterministic for deterministic programs, without
      addresses or paths.
    seconds: wall-clock time of the call; differs from run to run, so two results are equal without
      it.
  """

  status: str
  output: str
  seconds: float = dataclasses.field(default=0.0, compare=False)


class Tool(Protocol):
  """Text in, text out; a bad text gives a status, never an exception."""

  def run(self, text: str) -> ToolResult: ...

  def run_many(self, texts: Sequence[str]) -> list[ToolResult]:
    """Results in the order of the texts."""
    ...

  def close(self) -> None: ...

  def __enter__(self) -> "Tool": ...

  def __exit__(self, *_) -> None: ...


@dataclasses.dataclass(frozen=True)
class Finished:
  """A program that has ended, as the process above it saw it.

  Attributes:
    wait: status as of `os.waitpid`.
    late: it was still running at the end of its wall-clock time.
    cpu: seconds of processor time.
    head: its first output bytes.
    tail: its last output bytes where some between were left out; None where `head` is all.
    err: the last bytes of its error stream.
    seconds: wall-clock time.
  """

  wait: int
  late: bool
  cpu: float
  head: bytes
  tail: bytes | None
  err: bytes
  seconds: float


def interpret(ended: Finished, *, cpu_seconds: float, output_chars: int,
              directory: str = "") -> ToolResult:
  """Status from the wait status, and the row's text.

  The program's own bytes touch the status in one place: they tell `memory` from `error` among
  programs that left with a status other than 0. No output makes a failed program `ok`.

  Args:
    directory: above the program's own, where its path is random; taken out of the text.
  """
  status, reason = _outcome(ended, cpu_seconds)
  text = ended.head.decode(errors="replace")
  # how a program's output begins does not depend on the machine; how far it came does
  if status == "timeout":
    text = text if ended.tail is None and len(text) <= output_chars // 2 else text[:output_chars //
                                                                                   2] + CUT
  else:
    text = shorten(text, None if ended.tail is None else ended.tail.decode(errors="replace"),
                   output_chars)
  if reason:
    text += ("\n" if text and not text.endswith("\n") else "") + reason
  return ToolResult(status, plain(text, directory), ended.seconds)


def shorten(head: str, tail: str | None, chars: int) -> str:
  """At most `chars` characters of the output, from both ends, and a mark between them if any are
  missing.
  """
  if tail is None:
    if len(head) <= chars:
      return head
    tail = head
  return head[:chars // 2] + CUT + tail[len(tail) - chars // 2:]


def plain(text: str, directory: str = "") -> str:
  """Without the addresses of objects and the random path, which differ from run to run."""
  if directory:
    text = text.replace(f"{directory}/program", "/tmp").replace(directory, "/tmp")
  return _ADDRESS.sub(" at 0x0", text)


def _outcome(ended: Finished, cpu_seconds: float) -> tuple[str, str]:
  if os.WIFSIGNALED(ended.wait):
    number = os.WTERMSIG(ended.wait)
    out_of_time = number == signal.SIGXCPU or (number == signal.SIGKILL and
                                               (ended.late or ended.cpu >= cpu_seconds))
    return ("timeout", TIMEOUT) if out_of_time else ("killed", f"killed by {_signal_name(number)}")
  code = os.WEXITSTATUS(ended.wait)
  if code == 0:
    return "ok", ""
  lines = ended.err.decode(errors="replace").strip().splitlines()
  line = lines[-1][:ERROR_CHARS] if lines else f"exit status {code}"
  return "memory" if line.split(":")[0] == "MemoryError" else "error", line


def _signal_name(number: int) -> str:
  try:
    return signal.Signals(number).name
  except ValueError:  # real-time signals have no name
    return f"signal {number}"
