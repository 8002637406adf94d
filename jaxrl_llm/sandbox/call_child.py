"""The sandbox's end of `isolated_calls`: calls a function on texts of the policy, inside a program.

It is loaded by its path before the worker is isolated, and `target` is set then. Only the standard
library is used. The answers go through a handle that prints do not reach, each with a token that
the caller made up: what a text prints is no answer.
"""

import base64
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable

SHARE = 1.0  # seconds after which a program leaves the rest of its calls to the next one
# Events of Python's audit by which a text could run as code, or act beyond this process.
ACTS = {"exec", "pickle.find_class", "os.system", "os.fork", "os.posix_spawn", "subprocess.Popen",
        "ctypes.dlopen"}
target: Callable


def answer(request: str) -> None:
  """Writes a line for each call: its number, `value` or `raised`, and the value or exception.

  A call that would run a text as code while others wait in the same process is not made: `alone`
  asks for a program that makes this call and no other. The kernel's timers end the program when a
  call has used up its time, also inside one step of Python.
  """
  token, cpu, wall, files, calls = pickle.loads(base64.b64decode(request))
  out = os.dup(1)
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

  def say(number: int, kind: str, content=None) -> None:
    line = token + json.dumps([number, kind, content], default=plain) + "\n"
    os.write(out, line.encode())

  def watch(event: str, _) -> None:
    if event in ACTS:
      say(number, "alone")
      os._exit(0)

  number = 0
  if files and len(calls) > 1:
    sys.addaudithook(watch)
  begin = time.monotonic()
  for number, arguments in enumerate(calls):
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, wall)
    try:
      say(number, "value", target(*arguments))
    except BaseException as error:  # also sys.exit of a text
      say(number, "raised", f"{type(error).__name__}: {str(error)[:200]}")
    if time.monotonic() - begin > SHARE:
      break
  signal.setitimer(signal.ITIMER_PROF, 0)
  signal.setitimer(signal.ITIMER_REAL, 0)


def plain(value):
  """Returns a number of numpy as one of Python."""
  if hasattr(value, "item") and getattr(value, "shape", None) == ():
    return value.item()
  raise TypeError(f"a reward returned {type(value).__name__}, which is neither a number nor "
                  "components")
