"""How the commands in experiments/ begin and end: flags, processes, messages, the cache of compiled
programs.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app, flags, logging

from jaxrl_llm import paper_table
from jaxrl_llm.config import ConfigError
from jaxrl_llm.parallel import processes
from jaxrl_llm.store import cache
from jaxrl_llm.store.signals import Terminated

_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "With several processes: host:port of process 0. This flag and the next "
    "two are not needed where Cloud TPU, SLURM or Kubernetes launches the processes.")
_PROCESSES = flags.DEFINE_integer("processes", None, "With several processes: how many.")
_PROCESS = flags.DEFINE_integer("process", None, "With several processes: which one, from 0.")
_WAIT = flags.DEFINE_float("wait_for_processes", 300.0,
                           "Seconds in which all processes must have come.")
INTERRUPTED = 128 + signal.SIGINT  # the exit status that shells report for it
# That of a run which came to an end before its last iteration, and would again.
ENDED_EARLY = 3


def run(main: Callable[[], None], required: Sequence[str], folders: Sequence[str],
        errors: tuple[type[Exception], ...], several: bool = False,
        early: tuple[type[Exception], ...] = ()) -> None:
  """Parses the flags and calls `main`.

  What the user can mend, and Ctrl-C, end the process with one line. With several processes, one
  that ends early tells the others why.

  Args:
    required: names of flags that must be given.
    folders: names of flags that hold a path; it must not be empty.
    errors: types that `main` raises for a user's mistake, besides ConfigError and OSError.
    several: whether `main` may run in several processes; if not, none are looked for.
    early: those of `errors` for which the exit status is ENDED_EARLY, not 1.
  """
  def checked(arguments: Sequence[str]) -> None:
    check(arguments[1:], required, folders)
    logging.set_verbosity(logging.WARNING)
    cache.keep_programs()
    if several:
      processes.start(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value, _WAIT.value)
    main()
    processes.finish()

  try:
    app.run(checked, flags_parser=parse)
  except errors + (ConfigError, OSError, processes.AbsentError) as error:
    print(f"error: {error}", file=sys.stderr)
    _exit(ENDED_EARLY if isinstance(error, early) else 1, str(error))
  except KeyboardInterrupt:
    print("interrupted: the same command, started again, goes on", file=sys.stderr)
    _exit(INTERRUPTED, "it was interrupted")
  except Terminated as error:
    if error.agreed:
      processes.finish()
    _exit(error.code, "it was told to end")
  except SystemExit as error:
    _exit(error.code, "it was told to end")
  except Exception as error:
    if processes.count() == 1:
      raise
    traceback.print_exc()
    _exit(1, f"{type(error).__name__}: {error}")


def _exit(status: int | str | None, reason: str) -> NoReturn:
  """Ends this process; others, if there are any, hear why, unless they ended first."""
  if status in (0, None) or not processes.fail(reason):
    sys.exit(status)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status if isinstance(status, int) else 1)  # JAX would wait for the others at the exit


def parse(arguments: list[str]) -> list[str]:
  """Returns the command and its arguments that are no flags."""
  try:
    return app.parse_flags_with_usage(arguments)
  # An unknown section. `from_dict` refuses unknown keys of a known one.
  except KeyError as error:
    name = str(error.args[0])
    raise ConfigError(f"unknown key: {name}{paper_table.key_now(name)}") from error


def check(rest: Sequence[str], required: Sequence[str], folders: Sequence[str]) -> None:
  """Refuses arguments that are no flags, absent flags, empty paths and addresses of buckets.

  Args:
    rest: the arguments that are no flags.

  Raises:
    ConfigError: naming them.
  """
  if rest:
    fixed = " ".join(f"--{text.lstrip('-')}" if "=" in text else f"--<flag>={text}"
                     for text in rest)
    raise ConfigError(f"{' '.join(rest)}: no flag, because flags begin with --. Fix: {fixed}.")
  for name in required:
    if flags.FLAGS[name].value is None:
      raise ConfigError(f"--{name} is not given. Fix: --{name}=..., see --help.")
  for name in folders:
    value = flags.FLAGS[name].value
    if value == "":
      raise ConfigError(f"--{name}= is empty. Fix: --{name}=<a folder>.")
    if "://" in str(value):
      raise ConfigError(f"--{name}={value}: not a folder but an address. Fix: mount the bucket as "
                        "a folder, or write to a folder and copy it.")
