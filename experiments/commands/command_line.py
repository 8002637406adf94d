"""Start and end of the commands in experiments/: processes, messages, the cache of compiled
programs. Their flags: command_flags.py.
"""

import contextlib
import ctypes
import functools
import logging as python_logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import jax
from absl import app, flags, logging

from experiments.commands import cache, start_up
from experiments.commands.command_flags import check, described, parse
from experiments.commands.start_up import AbsentError
from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import is_exhausted
from jaxrl_llm.parallel import processes
from jaxrl_llm.store.signals import Terminated

_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "With several processes: host:port of process 0. This flag and the next "
    "two are not needed where Cloud TPU, SLURM or Kubernetes launches the processes.")
_PROCESSES = flags.DEFINE_integer("processes", None, "With several processes: how many.")
_PROCESS = flags.DEFINE_integer("process", None, "With several processes: which one, from 0.")
_WAIT = flags.DEFINE_float("wait_for_processes", 300.0,
                           "Seconds in which all processes must have come.")
INTERRUPTED = 128 + signal.SIGINT  # the exit status that shells report for it
# The exit status of a run which ended before its last iteration, and would again.
ENDED_EARLY = 3
LONG = 1.0  # seconds
NO_BACKEND = "Unable to initialize backend"  # of JAX, followed by the reason


def run(main: Callable[[], None], required: Sequence[str], folders: Sequence[str],
        errors: tuple[type[Exception], ...], multi_process: bool = False,
        early: tuple[type[Exception], ...] = ()) -> None:
  """Parses the flags and calls `main`.

  Errors that the user can fix, and Ctrl-C, end the process with one line. With several processes,
  one that ends early tells the others why.

  Args:
    required: names of flags that must be given.
    folders: names of flags that hold a path; it must not be empty.
    errors: types that `main` raises for a user's mistake, besides ConfigError and OSError.
    multi_process: whether `main` may run in several processes; if not, none are looked for.
    early: the types among `errors` for which the exit status is ENDED_EARLY, not 1.
  """
  def checked(arguments: Sequence[str]) -> None:
    check(arguments[1:], required, folders)
    if not 0.0 <= _WAIT.value <= threading.TIMEOUT_MAX:
      raise ConfigError(f"--wait_for_processes={_WAIT.value}: allowed are 0 to "
                        f"{threading.TIMEOUT_MAX:.0f} seconds. Fix: such as 300.")
    logging.set_verbosity(logging.WARNING)
    logging.get_absl_logger().addFilter(_no_repetition)
    return_large_arrays()
    return_freed_memory()
    cache.keep_programs()
    if multi_process:
      start_up.start(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value, _WAIT.value)
    with _exits_named():
      main()
    start_up.finish()

  sys.unraisablehook = _report
  try:
    app.run(checked, flags_parser=parse)
  except errors + (ConfigError, OSError, AbsentError) as error:
    _silence_threads()
    print(f"error: {with_fix(error)}", file=sys.stderr)
    _exit(ENDED_EARLY if isinstance(error, early) else 1, str(error))
  except KeyboardInterrupt:
    print("interrupted: the same command, started again, resumes", file=sys.stderr)
    _exit(INTERRUPTED, "it was interrupted")
  except Terminated as error:
    if error.agreed:
      start_up.finish()
    _exit(error.code, "it was told to end")
  except SystemExit as error:
    _exit(error.code, "it was told to end")
  except Exception as error:
    if isinstance(error, RuntimeError) and str(error).startswith(NO_BACKEND):
      sys.exit(f"error: JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}, "
               f"XLA_FLAGS={os.environ.get('XLA_FLAGS', '')}: {' '.join(str(error).split())}. "
               "Fix: these variables, or the installation of JAX for the device.")
    if isinstance(error, MemoryError) or is_exhausted(error):
      from experiments.commands import out_of_memory

      _silence_threads()
      print(f"error: {out_of_memory.line(error)}", file=sys.stderr)
      _exit(1, "it is out of memory")
    if processes.count() == 1:
      raise
    traceback.print_exc()
    _exit(1, f"{type(error).__name__}: {error}")


def return_large_arrays() -> None:
  """Makes `free` give arrays from 1 MiB on back to the system, unless the environment says when.

  glibc raises this limit to 32 MiB as soon as such an array is freed; then weights and activations
  lie in a heap that small objects keep from shrinking. Other C libraries have no such call.
  """
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
    mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD of malloc.h


@functools.cache
def return_freed_memory() -> None:
  """Gives freed memory back to the system after each event that JAX reports of more than LONG, such
  as a compilation or a checkpoint: it leaves gaps between small objects, which the heap keeps.
  """
  trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
  if trim is not None:
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: trim(0) if seconds > LONG else None)


def with_fix(error: Exception) -> str:
  """Returns an error's text, with a fix for those of the operating system that name a path."""
  text = str(error)
  if not isinstance(error, OSError) or error.filename is None or "Fix: " in text:
    return text
  return f"{text}. Fix: that file or folder, or its permissions."


def _no_repetition(record) -> bool:
  """Returns False for Orbax's log records about the metadata of a checkpoint that cannot be read:
  the run's own warning or error names that checkpoint and the cause, in one line.
  """
  return not record.pathname.endswith("orbax/checkpoint/_src/metadata/checkpoint.py")


@contextlib.contextmanager
def _exits_named():
  """Turns a plugin's sys.exit, which would end the run without a word, and its exceptions that are
  no `Exception`, which nothing catches, into one line.
  """
  try:
    yield
  except (Exception, KeyboardInterrupt, Terminated):
    raise
  except BaseException as error:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = (f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else described(error))
    raise ConfigError(f"{frame.filename}, line {frame.lineno}, {frame.name}: {what} would end the "
                      "run. Fix: an exception there.") from error


def _silence_threads() -> None:
  """Keeps what is left unfinished, and fails after the error as the process ends, from printing:
  objects that are freed, threads, and the event loops of Orbax.
  """
  sys.unraisablehook = threading.excepthook = lambda _: None
  python_logging.getLogger("asyncio").setLevel(python_logging.CRITICAL + 1)


def _report(unraisable) -> None:
  """Prints what cannot be raised, as Python does, but for two:

  what TensorStore's threads meet when they call back a loop of Orbax that a failed restore has
  closed: the restore's own error is printed; and a signal's exception in a destructor, which the
  run raises again (`Signals`).
  """
  error = unraisable.exc_value
  of_loop = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
  if not of_loop and not isinstance(error, (KeyboardInterrupt, Terminated)):
    sys.__unraisablehook__(unraisable)


def _exit(status: int | str | None, reason: str) -> NoReturn:
  """Ends this process; others, if there are any, hear why, unless they ended first."""
  if status not in (0, None):
    _silence_threads()
  if status in (0, None) or not start_up.fail(reason):
    sys.exit(status)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status if isinstance(status, int) else 1)  # JAX would wait for the others at the exit
