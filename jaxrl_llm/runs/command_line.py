"""How the commands in experiments/ begin and end: flags, processes, messages, the cache of compiled
programs.
"""

import contextlib
import keyword
import logging as python_logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app, flags, logging

from jaxrl_llm import paper_table
from jaxrl_llm.config import Config, ConfigError, convert, load_plugins
from jaxrl_llm.fields import Problems, shown
from jaxrl_llm.parallel import kept_programs, processes
from jaxrl_llm.store import cache, folders
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
NO_BACKEND = "Unable to initialize backend"  # of JAX, whose text goes on with the reason
IN_BUCKETS = ("workdir", "pretrained")  # flags that may name a folder in a bucket


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
    if not 0.0 <= _WAIT.value <= threading.TIMEOUT_MAX:
      raise ConfigError(f"--wait_for_processes={_WAIT.value}: allowed are 0 to "
                        f"{threading.TIMEOUT_MAX:.0f} seconds. Fix: such as 300.")
    logging.set_verbosity(logging.WARNING)
    logging.get_absl_logger().addFilter(_no_repetition)
    cache.keep_programs()
    kept_programs.keep_in(cache.kept_folder())
    if several:
      processes.start(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value, _WAIT.value)
    with _exits_named():
      main()
    processes.finish()

  sys.unraisablehook = _report
  try:
    app.run(checked, flags_parser=parse)
  except errors + (ConfigError, OSError, processes.AbsentError) as error:
    _silence_threads()
    print(f"error: {with_fix(error)}", file=sys.stderr)
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
    if isinstance(error, RuntimeError) and str(error).startswith(NO_BACKEND):
      sys.exit(f"error: JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}, "
               f"XLA_FLAGS={os.environ.get('XLA_FLAGS', '')}: {' '.join(str(error).split())}. "
               "Fix: these variables, or the installation of JAX for the device.")
    if processes.count() == 1:
      raise
    traceback.print_exc()
    _exit(1, f"{type(error).__name__}: {error}")


def with_fix(error: Exception) -> str:
  """Returns an error's text; that of the operating system names a path, and here a fix, too."""
  text = str(error)
  if not isinstance(error, OSError) or error.filename is None or "Fix: " in text:
    return text
  return f"{text}. Fix: that file or folder, or its permissions."


def _no_repetition(record) -> bool:
  """Whether a log record is none of Orbax about the metadata of a checkpoint that cannot be read:
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
    what = (f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else _described(error))
    raise ConfigError(f"{frame.filename}, line {frame.lineno}, {frame.name}: {what} would end the "
                      "run. Fix: an exception there.") from error


def _silence_threads() -> None:
  """Keeps what is left unfinished, and fails after the error as the process ends, from printing:
  objects that are freed, threads, and the event loops of Orbax.
  """
  sys.unraisablehook = threading.excepthook = _ignore
  python_logging.getLogger("asyncio").setLevel(python_logging.CRITICAL + 1)


def _ignore(_) -> None:
  pass


def _report(unraisable) -> None:
  """Prints what cannot be raised, as Python does, but for what TensorStore's threads meet when they
  call back a loop of Orbax that a failed restore has closed: the restore's own error is printed.
  """
  error = unraisable.exc_value
  if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
    sys.__unraisablehook__(unraisable)


def _exit(status: int | str | None, reason: str) -> NoReturn:
  """Ends this process; others, if there are any, hear why, unless they ended first."""
  if status not in (0, None):
    _silence_threads()
  if status in (0, None) or not processes.fail(reason):
    sys.exit(status)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status if isinstance(status, int) else 1)  # JAX would wait for the others at the exit


def parse(arguments: list[str]) -> list[str]:
  """Returns the command and its arguments that are no flags.

  Raises:
    ConfigError: an argument that cannot be read, or a config file that fails, with its line.
  """
  check_keys(arguments)
  path = _config_path(arguments)
  if not path and {"--config=", "-config="} & set(arguments):
    raise ConfigError("--config= is empty. Fix: --config=<a file>, such as configs/quickstart.py.")
  if path and not os.path.isfile(path):
    raise ConfigError(f"--config={path}: no file there. Fix: --config=configs/quickstart.py, or "
                      "another file that has get_config().")
  try:
    with _errors_only():  # ml_collections warns of None, which is refused here
      rest = flags.FLAGS(arguments)
    if path and "config" in flags.FLAGS and not hasattr(flags.FLAGS["config"].value, "items"):
      raise ConfigError(f"--config={path}: get_config() returned "
                        f"{shown(flags.FLAGS['config'].value)}. Fix: return the config.")
    return rest
  except ConfigError:
    raise  # of the config file, which named an unknown preset or the like
  # An unknown section. `from_dict` refuses unknown keys of a known one.
  except KeyError as error:
    if line := _line(arguments, error):
      raise ConfigError(f"{line}: {_described(error)}. Fix: the config file.") from error
    name, *hint = str(error.args[0]).split("\n")  # of ml_collections: Did you mean "..."
    nearest = re.match(r'Did you mean "(\w+)"', " ".join(hint))
    nearest = f"; nearest known key: {nearest[1]}" if nearest else ""
    section = name.strip("'\"")
    full = next((key for key in _keys(arguments) if f".{section}." in f".{key}."), section)
    if below := re.search(r"Attempting to lookup: ([\w.]+)", name):  # a key in one that has a value
      name = full = below[1]
    hint_text = paper_table.key_now(name) or convert.section_hint(section, full) or nearest
    fix = "" if "Fix: " in hint_text else ". Fix: a key of `python -m jaxrl_llm.config --all`."
    raise ConfigError(f"unknown key: {name[:300]}{hint_text}{fix}") from error
  except BaseException as error:  # whatever the user's file raises
    place = _place(arguments, error)
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and place is None):
      raise  # the second: of --help
    cause = _first_cause(error)
    # Of a flag that does not fit, absl's text names it; a config file's has a traceback in it.
    of_flag = isinstance(error, flags.IllegalFlagValueError) and "Traceback" not in str(error)
    text = _described(error if of_flag and not _line(arguments, error) else cause)
    raise ConfigError(f"{place or 'the flags cannot be read'}: {text}. Fix: the file "
                      "or flag; --help lists the flags.") from error


def config_of(flag, check: Callable | None = None) -> Config:
  """Returns the Config of the flag --config, with all other flags applied.

  Where a flag chooses another task than the file, what only the file's task reads is unset, and the
  log names it.

  Args:
    flag: what `config_flags.DEFINE_config_file` returned.
    check: refuses a Config for other reasons. Where keys or values are refused, it checks the rest,
      so that one message has all of it.

  Raises:
    ConfigError: all that is wrong with keys and values, and what `check` refuses then.
  """
  from ml_collections import config_flags  # here: some commands have no config

  overrides = config_flags.get_override_values(flags.FLAGS["config"])
  if "task.name" in overrides:
    load_plugins(flag.value.get("plugins"))  # which may register the task
  if unset := convert.without_foreign(flag.value, overrides, "task"):
    logging.warning("task.name = %r does not read %s, which --config sets for another task: unset",
                    flag.value.task.name, ", ".join(unset))
  problems = Problems()
  cfg = convert.from_dict_with(flag.value, problems)
  if problems.errors and check is not None:
    with problems:
      check(cfg)
  problems.refuse()
  return cfg


def _keys(arguments: Sequence[str]) -> list[str]:
  """Returns the full keys of the flags that set one."""
  names = (text.lstrip("-").partition("=")[0] for text in arguments[1:])
  return [name.removeprefix("config.") for name in names if name.startswith("config.")]


@contextlib.contextmanager
def _errors_only():
  """Absl logs no warnings inside."""
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(verbosity)


def check_keys(arguments: Sequence[str]) -> None:
  """Refuses keys that are no names joined by dots, which ml_collections reads as code.

  Raises:
    ConfigError: naming the key.
  """
  for argument in arguments[1:]:
    flag, _, key = argument.lstrip("-").partition("=")[0].partition(".")
    if not argument.startswith("--") or flag != "config" or "." not in argument.partition("=")[0]:
      continue
    parts = key.split(".")
    if not all(part.isidentifier() and part.isascii() and not keyword.iskeyword(part)
               for part in parts):
      raise ConfigError(f"{argument[:80]}: {key!r} is no key; keys are names of letters, digits "
                        "and _, joined by dots. Fix: --config.<section>.<key>=<value>; "
                        "`python -m jaxrl_llm.config` lists them all.")


def _first_cause(error: BaseException) -> BaseException:
  """The exception that others were raised for."""
  return _causes(error)[-1]


def _causes(error: BaseException) -> list[BaseException]:
  """An exception, the one that it was raised for, and so on."""
  links = [error]
  while (cause := links[-1].__cause__ or links[-1].__context__) is not None:
    links.append(cause)
  return links


def _place(arguments: Sequence[str], error: BaseException) -> str | None:
  """The config where an error may have arisen, with the line if known; None: there is none."""
  path = _config_path(arguments)
  return _line(arguments, error) or (f"--config={path}" if path else None)


def _config_path(arguments: Sequence[str]) -> str:
  """The file of the flag --config; empty without one."""
  paths = [text.partition("=")[2] for text in arguments
           if text.startswith(("-config=", "--config="))]
  return re.sub(r"\.py:.*", ".py", paths[-1]) if paths else ""


def _line(arguments: Sequence[str], error: BaseException) -> str | None:
  """File and line of the config where an error arose; None: elsewhere."""
  path = _config_path(arguments)
  cause = _first_cause(error)
  if isinstance(cause, SyntaxError) and cause.filename:
    return f"--config={path}: {cause.filename}, line {cause.lineno}"
  frames = [frame for link in _causes(error) for frame in traceback.extract_tb(link.__traceback__)
            if path and os.path.realpath(frame.filename) == os.path.realpath(path)]
  if not frames:
    return None
  return f"--config={path}: line {frames[-1].lineno}, {frames[-1].name}"


def _described(error: BaseException) -> str:
  """Type and text of an exception, in one line."""
  try:
    text = " ".join(str(error).split())[:300]
  except Exception:  # an exception of the user's own, whose text cannot be made
    text = ""
  return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check(rest: Sequence[str], required: Sequence[str], folders: Sequence[str]) -> None:
  """Refuses arguments that are no flags, absent flags, empty paths and addresses that do not fit.

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
      _check_address(name, str(value))


def _check_address(name: str, value: str) -> None:
  """Refuses an address where a flag takes none, or of another service than Google's buckets."""
  if not folders.is_bucket(value):
    raise ConfigError(folders.refusal(f"--{name}=", value))
  if name not in IN_BUCKETS:
    raise ConfigError(f"--{name}={value}: this is written to a folder. Fix: --{name}=<a folder>, "
                      "and `gcloud storage cp -r` of it.")
  if not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]+[a-z0-9](/[^/]+)+/?", value):
    raise ConfigError(f"--{name}={value}: no folder in a bucket. Fix: gs://<bucket>/<folder>.")
