"""Flags of the commands in experiments/: reading them, the config that they make, and what is wrong
with them.
"""

import contextlib
import keyword
import os
import re
import traceback
from collections.abc import Callable, Sequence

from absl import flags, logging

from jaxrl_llm.config import Config, ConfigError, convert, load_plugins
from jaxrl_llm.fields import Problems, shown
from jaxrl_llm.store import folders

IN_BUCKETS = ("workdir", "pretrained")  # flags that may name a folder in a bucket


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
      positionals = flags.FLAGS(arguments)
    if path and "config" in flags.FLAGS and not hasattr(flags.FLAGS["config"].value, "items"):
      raise ConfigError(f"--config={path}: get_config() returned "
                        f"{shown(flags.FLAGS['config'].value)}. Fix: return the config.")
    return positionals
  except ConfigError:
    raise  # of the config file, which named an unknown preset or the like
  # An unknown section. `from_dict` refuses unknown keys of a known one.
  except KeyError as error:
    if line := _line(arguments, error):
      raise ConfigError(f"{line}: {described(error)}. Fix: the config file.") from error
    name, *hint = str(error.args[0]).split("\n")  # of ml_collections: Did you mean "..."
    nearest = re.match(r'Did you mean "(\w+)"', " ".join(hint))
    nearest = f"; nearest known key: {nearest[1]}" if nearest else ""
    section = name.strip("'\"")
    full = next((key for key in _keys(arguments) if f".{section}." in f".{key}."), section)
    # A key in one that has a value.
    if lookup := re.search(r"Attempting to lookup: ([\w.]+)", name):
      name = full = lookup[1]
    hint_text = convert.section_hint(section, full) or nearest
    fix = "" if "Fix: " in hint_text else ". Fix: a key of `python -m jaxrl_llm.config --all`."
    raise ConfigError(f"unknown key: {name[:300]}{hint_text}{fix}") from error
  except BaseException as error:  # whatever the user's file raises
    place = _place(arguments, error)
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and place is None):
      raise  # the second: of --help
    cause = _first_cause(error)
    # Of a flag that does not fit, absl's text names it; a config file's has a traceback in it.
    of_flag = isinstance(error, flags.IllegalFlagValueError) and "Traceback" not in str(error)
    text = described(error if of_flag and not _line(arguments, error) else cause)
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
  """Returns the exception that others were raised for."""
  return _causes(error)[-1]


def _causes(error: BaseException) -> list[BaseException]:
  """Returns an exception, the one that it was raised for, and so on."""
  links = [error]
  while (cause := links[-1].__cause__ or links[-1].__context__) is not None:
    links.append(cause)
  return links


def _place(arguments: Sequence[str], error: BaseException) -> str | None:
  """Returns the config where an error may have arisen, with the line if known; None: there is none.
  """
  path = _config_path(arguments)
  return _line(arguments, error) or (f"--config={path}" if path else None)


def _config_path(arguments: Sequence[str]) -> str:
  """Returns the file of the flag --config; empty without one."""
  paths = [text.partition("=")[2] for text in arguments
           if text.startswith(("-config=", "--config="))]
  return re.sub(r"\.py:.*", ".py", paths[-1]) if paths else ""


def _line(arguments: Sequence[str], error: BaseException) -> str | None:
  """Returns file and line of the config where an error arose; None: elsewhere."""
  path = _config_path(arguments)
  cause = _first_cause(error)
  if isinstance(cause, SyntaxError) and cause.filename:
    return f"--config={path}: {cause.filename}, line {cause.lineno}"
  frames = [frame for link in _causes(error) for frame in traceback.extract_tb(link.__traceback__)
            if path and os.path.realpath(frame.filename) == os.path.realpath(path)]
  if not frames:
    return None
  return f"--config={path}: line {frames[-1].lineno}, {frames[-1].name}"


def described(error: BaseException) -> str:
  """Returns type and text of an exception, in one line."""
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
    elif value is not None:
      flags.FLAGS[name].value = os.path.expanduser(value)


def _check_address(name: str, value: str) -> None:
  """Refuses an address where a flag takes none, or of another service than Google's buckets."""
  if not folders.is_bucket(value):
    raise ConfigError(folders.refusal(f"--{name}=", value))
  if name not in IN_BUCKETS:
    raise ConfigError(f"--{name}={value}: this is written to a folder. Fix: --{name}=<a folder>, "
                      "and `gcloud storage cp -r` of it.")
  if not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]+[a-z0-9](/[^/]+)+/?", value):
    raise ConfigError(f"--{name}={value}: no folder in a bucket. Fix: gs://<bucket>/<folder>.")
