"""Flags of the commands in experiments/: reading them, and the config that they make."""

import keyword
import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from absl import flags, logging

from jaxrl_llm.config import Config, ConfigError, convert, keys, load_plugins
from jaxrl_llm.config.plugins import names as plugin_names
from jaxrl_llm.fields import Problems, shown
from jaxrl_llm.store import folders

# Keys of texts in which the shell leaves "\n" as it is; LaTeX has commands that begin so, too.
TEXTS = ("prompt.template", "prompt.suffix", "prompt.system", "stop_strings")
LATEX = (r"(?:abla|atural|cong|e|earrow|eg|eq|ew(?:line|page|command)|exists|geq|gtr|i|leq|less|mid"
         r"|o(?:break|indent|limits|number|rm|rmalsize|t|tin)|parallel|prec|sim|subseteq|succ|u"
         r"|warrow)(?![a-z])")
BREAK, TAB = re.compile(rf"(?<!\\)(?:\\r)?\\n(?!{LATEX})"), re.compile(r"(?<!\\)\\t(?![A-Za-z])")
# Methods that are plugins of this repository: a config that names one brings its plugin.
PLUGINS = {"task.name": {name: f"experiments.tasks.{name}"
                         for name in ("countdown", "tool_arithmetic")},
           "writer.name": dict.fromkeys(("wandb", "trackio"), "experiments.writers.online")}
FOLDER = re.compile(r"gs://[a-z0-9][a-z0-9._-]+[a-z0-9](/[^/]+)+/?")  # in a bucket


def parse(arguments: list[str]) -> list[str]:
  """Returns the command and its arguments that are no flags.

  Raises:
    ConfigError: an argument that cannot be read, or a config file that fails, with its line.
  """
  check_keys(arguments)
  paths = [text.partition("=")[2] for text in arguments
           if text.startswith(("-config=", "--config="))]
  path = re.sub(r"\.py:.*", ".py", paths[-1]) if paths else None
  if path is not None and not os.path.isfile(path):
    raise ConfigError(f"--config={path}: no file there. Fix: --config=configs/quickstart.py, or "
                      "another file that has get_config().")
  settings = (text.removeprefix("--config.").partition("=") for text in arguments)
  load_plugins(plugins_of({key: value for key, _, value in settings}))
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)  # ml_collections warns of None, which is refused here
  try:
    positionals = flags.FLAGS(arguments)
  except (ConfigError, KeyboardInterrupt):
    raise  # the first: of the config file, which named an unknown preset or the like
  except BaseException as error:  # whatever the user's file raises
    place = _place(path, error)
    if isinstance(error, KeyError) and place is None:
      raise ConfigError(_unknown_section(arguments, error)) from error
    if isinstance(error, SystemExit) and place is None and not path:
      raise  # of --help
    of_flag = isinstance(error, flags.IllegalFlagValueError) and "Traceback" not in str(error)
    text = described(error if of_flag and place is None else _causes(error)[-1])
    where = place or (f"--config={path}" if path else "the flags cannot be read")
    raise ConfigError(f"{where}: {text}. Fix: the file or flag; --help lists the flags.") from error
  finally:
    logging.set_verbosity(verbosity)
  if path and "config" in flags.FLAGS and not hasattr(flags.FLAGS["config"].value, "items"):
    raise ConfigError(f"--config={path}: get_config() returned "
                      f"{shown(flags.FLAGS['config'].value)}. Fix: return the config.")
  return positionals


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
  if plugins := plugins_of(_names(flag.value)):
    flag.value.plugins = tuple(dict.fromkeys([*plugin_names(flag.value.get("plugins")), *plugins]))
  if "task.name" in overrides:
    load_plugins(flag.value.get("plugins"))  # which may register the task
  if unset := without_foreign(flag.value, overrides, "task"):
    logging.warning("task.name = %r does not read %s, which --config sets for another task: unset",
                    flag.value.task.name, ", ".join(unset))
  for key in overrides:
    if key.endswith(TEXTS):
      flag.value.update_from_flattened_dict({key: with_breaks(overrides[key])})
  problems = Problems()
  cfg = convert.from_dict_with(flag.value, problems)
  if problems.errors and check is not None:
    with problems:
      check(cfg)
  problems.refuse()
  return cfg


def _names(values) -> dict[str, Any]:
  """Returns the values of the keys of PLUGINS in a ConfigDict of whatever form."""
  names = {}
  for key in PLUGINS:
    section, _, name = key.partition(".")
    if hasattr(part := values.get(section), "get"):
      names[key] = part.get(name)
  return names


def plugins_of(values: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns this repository's plugins that values of keys name methods of."""
  return tuple(table[name] for key, table in PLUGINS.items()
               for name in str(values.get(key, "")).split(",") if name in table)


def without_foreign(values, overrides, section: str) -> list[str]:
  """Unsets the hyperparameters in a section that only other methods than the chosen one read.

  A config file chooses a task with its hyperparameters; a flag that chooses another task leaves
  these without a reader.

  Args:
    values: ConfigDict of a file with flags applied; it is changed.
    overrides: full keys that flags set. Their values stay, and are refused where nothing reads
      them.
    section: such as "task".

  Returns:
    the full keys that were unset.
  """
  table = get_type_hints(Config)[section].table
  if f"{section}.name" not in overrides or values[section].get("name") not in table:
    return []
  numbers = table[values[section]["name"]].defaults
  foreign = [key for key, value in values[section].items()
             if key not in numbers and table.readers(key) and f"{section}.{key}" not in overrides
             and not any(name.startswith(f"{section}.{key}.") for name in overrides)
             and _is_set(value)]
  for key in foreign:
    value = values[section][key]
    for name in (value if hasattr(value, "items") else ()):
      value[name] = None
    if not hasattr(value, "items"):
      values[section][key] = None
  return [f"{section}.{key}" for key in foreign]


def _is_set(value) -> bool:
  """Returns whether a value, or a key of a section, is set."""
  if hasattr(value, "items"):
    return any(inner is not None for inner in value.values())
  return value is not None


def with_breaks(value):
  r"""Returns a text of a flag, or a tuple of them, with line breaks and tabs for \n and \t.

  \nu, \neq and the other commands of LaTeX that begin so stay, and so does \\n.
  """
  if isinstance(value, (tuple, list)):
    return tuple(map(with_breaks, value))
  return TAB.sub("\t", BREAK.sub("\n", value)) if isinstance(value, str) else value


def check_keys(arguments: Sequence[str]) -> None:
  """Refuses keys that are no names joined by dots, which ml_collections reads as code.

  Raises:
    ConfigError: naming the key.
  """
  for key in _keys(arguments):
    if not all(part.isidentifier() and part.isascii() and not keyword.iskeyword(part)
               for part in key.split(".")):
      raise ConfigError(f"--config.{key[:80]}: {key!r} is no key; keys are names of letters, "
                        "digits and _, joined by dots. Fix: --config.<section>.<key>=<value>; "
                        "`python -m jaxrl_llm.config` lists them all.")


def _keys(arguments: Sequence[str]) -> list[str]:
  """Returns the full keys of the flags that set one."""
  names = (text.partition("=")[0] for text in arguments[1:])
  return [name.removeprefix("--config.") for name in names if name.startswith("--config.")]


def _unknown_section(arguments: Sequence[str], error: KeyError) -> str:
  """Returns the message about a section that the config does not have; `from_dict` refuses unknown
  keys of a known one.
  """
  name, *hint = str(error.args[0]).split("\n")  # of ml_collections: Did you mean "..."
  section = name.strip("'\"")
  full = next((key for key in _keys(arguments) if f".{section}." in f".{key}."), section)
  if lookup := re.search(r"Attempting to lookup: ([\w.]+)", name):  # a key in one that has a value
    name = full = lookup[1]
  nearest = re.match(r'Did you mean "(\w+)"', " ".join(hint))
  text = section_hint(section, full) or (
      f"; nearest known key: {nearest[1]}" if nearest else "")
  fix = "" if "Fix: " in text else ". Fix: a key of `python -m jaxrl_llm.config --all`."
  return f"unknown key: {name[:300]}{text}{fix}"


def section_hint(name: str, full: str) -> str:
  """Returns a hint for a name that is no section: the keys and values that have it.

  Args:
    name: of the unknown section, such as lora.
    full: the key that contains it, such as parameters.lora.rank.
  """
  all_keys, other = keys(), convert.OTHERS.get(full.rsplit(".", 1)[-1])
  if other:
    return f"; nearest known key: {other}. Fix: --config.{other}=..."
  near = [key for key in all_keys if name in key.rsplit(".", 1)[-1].split("_")]
  near += [key for key in all_keys if f".{name}." in f".{key}." and key not in near]
  prefix = full.partition(f"{name}.")[0]
  first = [key for key in near if prefix and key.startswith(prefix)] or near
  leaf = full.rsplit(".", 1)[-1]
  best = [key for key in first if key.endswith(f"_{leaf}")]
  if not first:
    return ""
  section = first[0].rsplit(".", 1)[0]
  return (f"; section {section!r} has {', '.join(first[:4])}. Fix: --config."
          f"{(best or first)[0]}=..., or another of them")


def _causes(error: BaseException) -> list[BaseException]:
  """Returns an exception, the one that it was raised for, and so on."""
  links = [error]
  while (cause := links[-1].__cause__ or links[-1].__context__) is not None:
    links.append(cause)
  return links


def _place(path: str | None, error: BaseException) -> str | None:
  """Returns file and line of the config where an error arose; None: elsewhere."""
  causes = _causes(error)
  if isinstance(causes[-1], SyntaxError) and causes[-1].filename:
    return f"--config={path}: {causes[-1].filename}, line {causes[-1].lineno}"
  frames = [frame for link in causes for frame in traceback.extract_tb(link.__traceback__)
            if path and os.path.realpath(frame.filename) == os.path.realpath(path)]
  return f"--config={path}: line {frames[-1].lineno}, {frames[-1].name}" if frames else None


def described(error: BaseException) -> str:
  """Returns type and text of an exception, in one line."""
  try:
    text = " ".join(str(error).split())[:300]
  except Exception:  # an exception of the user's own, whose text cannot be made
    text = ""
  return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check(rest: Sequence[str], required: Sequence[str], paths: Sequence[str]) -> None:
  """Refuses arguments that are no flags, absent flags, empty paths and addresses that do not fit;
  ~ in a path becomes the home folder.

  Args:
    rest: the arguments that are no flags.
    required: names of flags that must be given.
    paths: names of flags that hold a path; a run's (`workdir`) may be in a bucket.

  Raises:
    ConfigError: naming them.
  """
  if rest:
    raise ConfigError(f"{' '.join(rest)}: no flag, because flags begin with --. Fix: "
                      "--<flag>=<value>; --help lists the flags.")
  for name in required:
    if flags.FLAGS[name].value is None:
      raise ConfigError(f"--{name} is not given. Fix: --{name}=..., see --help.")
  for name in paths:
    value = flags.FLAGS[name].value
    if value == "":
      raise ConfigError(f"--{name}= is empty. Fix: --{name}=<a folder>.")
    if "://" not in str(value):
      flags.FLAGS[name].value = value and os.path.expanduser(value)
    elif not folders.is_bucket(value):
      raise ConfigError(folders.refusal(f"--{name}=", value))
    elif name != "workdir":
      raise ConfigError(f"--{name}={value}: only a run's folder may be in a bucket. Fix: "
                        f"--{name}=<a folder>, and `gcloud storage cp -r`.")
    elif not FOLDER.fullmatch(value):
      raise ConfigError(f"--{name}={value}: no folder in a bucket. Fix: gs://<bucket>/<folder>.")
