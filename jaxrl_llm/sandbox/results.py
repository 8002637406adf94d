"""The protocol of a tool, its result, and the text that a finished program gives a row."""

import dataclasses
import os
import re
import signal
from collections.abc import Sequence
from typing import Protocol, Self

STATUSES = ("ok", "error", "timeout", "memory", "killed", "unavailable")
CUT = "\n[... output cut ...]\n"
TIMEOUT = "timeout: the program was stopped at its time limit"
TIMERS = ("killed by SIGPROF", "killed by SIGALRM")  # last lines of a program that its timer ended
COSTLY, LATE = "costly", "timeout"  # how the reasons of such faults begin
ERROR_CHARS = 300  # of the line that says what went wrong
_ADDRESS = re.compile(r" at 0x[0-9a-f]{4,}")


@dataclasses.dataclass(frozen=True)
class ToolResult:
  """The result of one call of a tool.

  Attributes:
    status: one of STATUSES. `error`: the text was refused, or the program raised or left with a
      status other than 0. `timeout`: wall-clock or processor time was used up. `killed`: by a
      signal, which the output names. `unavailable`: the tool itself failed, which says nothing
      about the text; count it, or void the row.
    output: what goes into the token row. It has no addresses or random paths, so it is
      deterministic for deterministic programs.
    seconds: wall-clock time of the call; not compared, because it differs from run to run.
    cpu: processor time of a program in seconds; not compared either.
  """

  status: str
  output: str
  seconds: float = dataclasses.field(default=0.0, compare=False)
  cpu: float = dataclasses.field(default=0.0, compare=False)


@dataclasses.dataclass(frozen=True)
class Fault:
  """A call of a reward or scorer that gave no value.

  Attributes:
    reason: in one line.
    of_text: whether the text may be at fault, as it may where the function raised, or the text's
      own process ended or used up its processor time. Else the machine or a service is.
  """

  reason: str
  of_text: bool


def is_late(outcome) -> bool:
  """Returns whether a call has used up its processor or wall-clock time."""
  return isinstance(outcome, Fault) and outcome.reason.startswith((COSTLY, LATE))


class Tool(Protocol):
  """Text in, text out; a bad text gives a status, never an exception. A base of tools."""

  def run(self, text: str) -> ToolResult: ...

  def run_many(self, texts: Sequence[str]) -> list[ToolResult]:
    """Returns the results in the order of the texts."""
    return [self.run(text) for text in texts]

  def close(self) -> None:
    """Releases what the tool holds; by itself nothing."""
    return

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_) -> None:
    self.close()


@dataclasses.dataclass(frozen=True)
class Finished:
  """The end of a program, as its parent process saw it.

  Attributes:
    wait: status, as from `os.waitpid`.
    late: whether it was still running at the end of its wall-clock time.
    cpu: seconds of processor time.
    head: its first output bytes, or all of them.
    tail: its last output bytes, if some between were dropped; else None.
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


def interpret(finished: Finished, *, cpu_seconds: float, output_chars: int,
              directory: str = "") -> ToolResult:
  """Returns the result of a program that has ended.

  The status comes from the kernel, so no output makes a failed program `ok`. The program's own
  bytes decide only whether a status other than 0 is `memory` or `error`.

  Args:
    directory: random path of the parent of the program's directory, to be removed from the text;
      "": there is none.
  """
  status, reason = _outcome(finished, cpu_seconds)
  text = finished.head.decode(errors="replace")
  tail = None if finished.tail is None else finished.tail.decode(errors="replace")
  if status == "timeout":
    # How far a program came depends on the machine, so only the beginning of its output is kept.
    half = output_chars // 2
    if tail is not None or len(text) > half:
      text = text[:half] + CUT
  else:
    text = shorten(text, tail, output_chars)
  if reason:
    text += ("\n" if text and not text.endswith("\n") else "") + reason
  return ToolResult(status, plain(text, directory), finished.seconds, finished.cpu)


def shorten(head: str, tail: str | None, chars: int) -> str:
  """Returns at most `chars` characters of the output, from both ends, with a mark for the rest."""
  if tail is None:
    if len(head) <= chars:
      return head
    tail = head
  return head[:chars // 2] + CUT + tail[len(tail) - chars // 2:]


def plain(text: str, directory: str = "") -> str:
  """Removes the addresses of objects and the random path, which differ from run to run."""
  if directory:
    text = text.replace(f"{directory}/program", "/tmp").replace(directory, "/tmp")
  return _ADDRESS.sub(" at 0x0", text)


def _outcome(finished: Finished, cpu_seconds: float) -> tuple[str, str]:
  if os.WIFSIGNALED(finished.wait):
    number = os.WTERMSIG(finished.wait)
    used_up = finished.late or finished.cpu >= cpu_seconds
    if number == signal.SIGXCPU or (number == signal.SIGKILL and used_up):
      return "timeout", TIMEOUT
    return "killed", f"killed by {_signal_name(number)}"
  code = os.WEXITSTATUS(finished.wait)
  if code == 0:
    return "ok", ""
  lines = finished.err.decode(errors="replace").strip().splitlines()
  line = lines[-1][:ERROR_CHARS] if lines else f"exit status {code}"
  return "memory" if line.split(":")[0] == "MemoryError" else "error", line


def _signal_name(number: int) -> str:
  try:
    return signal.Signals(number).name
  except ValueError:  # real-time signals have no name
    return f"signal {number}"
