"""The forked process that becomes a program: gives up what it has, runs the text, and exits.

Only the standard library is used, because this file is loaded by its path. A program can change
only its own copy of the names here. The status that counts is the kernel's report to the parent.
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

leave = os._exit  # a program may replace os._exit


def become(code: bytes, out: int, err: int, directory: str, settings: dict) -> None:
  """Becomes the program and never returns.

  File handles other than 0, 1 and 2 are closed, and the environment is emptied.
  """
  os.setsid()
  # Opened again, because a shared file description keeps what a program sets on it.
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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
  """Sets the kernel's limits, or keeps lower ones that the trainer itself has.

  The limit on processes counts all processes of the user, or of its user namespace; the others hold
  for each process.
  """
  mega = 1 << 20
  limits = {
      "RLIMIT_CPU": settings["cpu_seconds"],
      "RLIMIT_AS": settings["memory_mb"] * mega,
      "RLIMIT_FSIZE": settings["file_mb"] * mega,
      "RLIMIT_NOFILE": settings["open_files"],
      "RLIMIT_NPROC": settings["processes"],
      "RLIMIT_SIGPENDING": 64,
      "RLIMIT_CORE": 0,
      "RLIMIT_MEMLOCK": 0,
      "RLIMIT_MSGQUEUE": 0,
  }
  for name, soft in limits.items():
    if hasattr(resource, name):
      number = getattr(resource, name)
      hard_limit = resource.getrlimit(number)[1]
      # The soft limit on processor time sends SIGXCPU; a second later the hard one kills.
      hard = soft + 1 if name == "RLIMIT_CPU" else soft
      top = hard if hard_limit == resource.RLIM_INFINITY else min(hard, hard_limit)
      try:
        resource.setrlimit(number, (min(soft, top), top))
      except (ValueError, OSError):
        if sys.platform == "linux":  # macOS knows some limits only by name
          raise


def execute(text: str) -> int:
  """Runs a text as `__main__`, with no state from before, and returns its exit status."""
  module = types.ModuleType("__main__")
  vars(module)["__builtins__"] = builtins
  sys.modules["__main__"], sys.argv = module, [""]
  # Programs use them; without `site` they are missing.
  vars(builtins).update(exit=sys.exit, quit=sys.exit)
  random.seed(0)  # so that a program with random numbers gives the same row each time
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
  """Returns the exit status of sys.exit(code)."""
  if code is None or isinstance(code, int):
    return (code or 0) & 0xFF
  say(code)
  return 1


def say(error) -> None:
  """Writes one line at the end of the error stream, if that is still open."""
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
  """Returns the last line of a traceback: the type and the first line of the message."""
  kind = type(error)
  plain = kind.__module__ in ("builtins", "__main__")
  name = kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"
  text = str(error).strip()
  return f"{name}: {text.splitlines()[0]}" if text else name


def finish() -> None:
  """Does what the interpreter does at its end: waits for threads, runs exit handlers, flushes."""
  threading = sys.modules.get("threading")
  wait_for_threads = threading and threading._shutdown
  flush = sys.stdout and sys.stdout.flush
  for step in (wait_for_threads, atexit._run_exitfuncs, flush):
    try:
      if step:
        step()
    except BaseException:
      pass
