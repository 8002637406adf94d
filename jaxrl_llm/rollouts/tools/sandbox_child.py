"""The forked process that becomes a program: gives up what it has, runs the text, leaves with a
status.

Standard library alone, loaded by path. Whatever the program does to this file's names, it does to
its own copy: the status that counts is the one the kernel reports to the parent.
"""

import atexit
import builtins
import os
import random
import resource
import signal
import sys
import types

import linux

leave = os._exit  # kept here, since a program may replace os._exit


def become(code: bytes, out: int, err: int, directory: str, settings: dict) -> None:
  """Never returns. File handles other than 0, 1 and 2 are closed, the environment is empty."""
  os.setsid()
  os.dup2(out, 1)
  os.dup2(err, 2)
  os.closerange(3, 1 << 20)
  os.chdir(directory)
  os.umask(0o077)
  os.environ.clear()
  signal.signal(signal.SIGINT, signal.default_int_handler)
  limit(settings)
  linux.drop_privileges(settings["uid"])
  try:
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
  except linux.REFUSED:
    pass  # not Linux
  leave(execute(code.decode("utf-8", "surrogatepass")))


def limit(settings: dict) -> None:
  """The kernel's limits, or lower ones that the trainer is under itself.

  The one on processes counts all of its user; the others are of each process alone.
  """
  mega = 1 << 20
  for name, soft, hard in (("RLIMIT_CPU", settings["cpu_seconds"], settings["cpu_seconds"] + 1),
                           ("RLIMIT_AS", settings["memory_mb"] * mega,
                            settings["memory_mb"] * mega),
                           ("RLIMIT_FSIZE", settings["file_mb"] * mega, settings["file_mb"] * mega),
                           ("RLIMIT_NOFILE", settings["open_files"], settings["open_files"]),
                           ("RLIMIT_NPROC", settings["processes"],
                            settings["processes"]), ("RLIMIT_SIGPENDING", 64, 64),
                           ("RLIMIT_CORE", 0, 0), ("RLIMIT_MEMLOCK", 0, 0), ("RLIMIT_MSGQUEUE", 0,
                                                                             0)):
    if hasattr(resource, name):
      number = getattr(resource, name)
      inherited = resource.getrlimit(number)[1]
      top = hard if inherited == resource.RLIM_INFINITY else min(hard, inherited)
      resource.setrlimit(number, (min(soft, top), top))


def execute(text: str) -> int:
  """Runs a text as `__main__` does, with no state from before; its exit status."""
  module = types.ModuleType("__main__")
  module.__builtins__ = builtins
  sys.modules["__main__"], sys.argv = module, [""]
  builtins.exit = builtins.quit = sys.exit  # programs use them; without `site` they are missing
  random.seed(0)  # else programs that draw would give another row each time
  status = 0
  try:
    exec(compile(text, "<program>", "exec", dont_inherit=True), module.__dict__)
  except SystemExit as stop:
    status = left(stop.code)
  except BaseException as error:
    say(error)
    status = 1
  finish()
  return status


def left(code) -> int:
  """The status of sys.exit(code)."""
  if code is None or isinstance(code, int):
    return (code or 0) & 0xFF
  say(code)
  return 1


def say(error) -> None:
  """One line at the end of the error stream, where it is still open."""
  try:
    line = describe(error) if isinstance(error, BaseException) else str(error)
  except BaseException:
    line = type(error).__name__  # its own __str__ failed, or memory is gone
  try:
    sys.stderr.flush()
  except BaseException:
    pass
  try:
    os.write(2, b"\n" + line[:2000].encode("utf-8", "replace") + b"\n")
  except BaseException:
    pass


def describe(error: BaseException) -> str:
  """The last line of a traceback, without its further lines."""
  kind = type(error)
  name = kind.__qualname__ if kind.__module__ in (
      "builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
  text = str(error).strip()
  return f"{name}: {text.splitlines()[0]}" if text else name


def finish() -> None:
  """What the interpreter does at its end: waits for threads, runs exit handlers, flushes."""
  threading = sys.modules.get("threading")
  for step in (threading and threading._shutdown, atexit._run_exitfuncs, sys.stdout and
               sys.stdout.flush):
    try:
      if step:
        step()
    except BaseException:
      pass
