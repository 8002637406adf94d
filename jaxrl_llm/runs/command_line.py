"""How the commands in experiments/ begin: flags, messages and the cache of compiled programs."""

import signal
import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging

from jaxrl_llm.config import ConfigError
from jaxrl_llm.runs import cache

INTERRUPTED = 128 + signal.SIGINT  # the exit status that shells report for it


def run(main: Callable[[], None], required: Sequence[str], folders: Sequence[str],
        errors: tuple[type[Exception], ...]) -> None:
  """Parses the flags and calls `main`.

  What the user can mend, and Ctrl-C, end the process with one line.

  Args:
    required: names of flags that must be given.
    folders: names of flags that hold a path; it must not be empty.
    errors: types that `main` raises for a user's mistake, besides ConfigError and OSError.
  """
  def checked(arguments: Sequence[str]) -> None:
    check(arguments[1:], required, folders)
    logging.set_verbosity(logging.WARNING)
    cache.keep_programs()
    main()

  try:
    app.run(checked, flags_parser=parse)
  except errors + (ConfigError, OSError) as error:
    sys.exit(f"error: {error}")
  except KeyboardInterrupt:
    print("interrupted: the same command, started again, goes on", file=sys.stderr)
    sys.exit(INTERRUPTED)


def parse(arguments: list[str]) -> list[str]:
  """Returns the command and its arguments that are no flags."""
  try:
    return app.parse_flags_with_usage(arguments)
  # An unknown section. `from_dict` refuses unknown keys of a known one.
  except KeyError as error:
    raise ConfigError(f"unknown key: {error.args[0]}") from error


def check(rest: Sequence[str], required: Sequence[str], folders: Sequence[str]) -> None:
  """Refuses arguments that are no flags, absent flags and empty paths.

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
    if flags.FLAGS[name].value == "":
      raise ConfigError(f"--{name}= is empty. Fix: --{name}=<a folder>.")
