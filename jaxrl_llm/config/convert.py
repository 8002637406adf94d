"""From a nested mapping (a ConfigDict, a JSON file) to the frozen Config, and back."""

import dataclasses
import difflib
import re
import typing
from typing import Any

from jaxrl_llm.config.plugins import load_plugins
from jaxrl_llm.config.root import Config
from jaxrl_llm.fields import SHOWN, ConfigError, Problems, checked, options, shown
from jaxrl_llm.registry import Choice

NAME = "<name>"  # of a section whose name the user chooses, in listings and messages
# Keys of former versions, which a run's folder may have, and their replacements.
REMOVED = {
    "model.value_head": "it is on where the advantage needs values: advantage.name=gae",
    "rollout.compaction": "the last completions are always gathered into a batch of half the size",
    **{f"task.{name}": f"the plugin of this task brings it: plugins=experiments.tasks.{name}"
       for name in ("countdown", "tool_arithmetic")},
}

# What TRL's and verl's users know a key by; here the last part of it.
OTHERS = {
    "num_generations": "rollout.group_size", "n": "rollout.group_size",
    "lr": "optimizer.learning_rate", "train_batch_size": "rollout.prompts",
    "max_completion_length": "rollout.max_new_tokens",
    "max_response_length": "rollout.max_new_tokens",
    "max_prompt_length": "rollout.max_prompt_tokens", "beta": "kl.coef",
    "kl_loss_coef": "kl.coef", "entropy_coeff": "entropy.coef",
}


def defaults(cls, imports: bool = True) -> dict[str, Any]:
  """Returns a nested dict of a section's keys, with the numbers of all methods as None; `imports`
  False: but for methods whose files are imported when they are chosen.
  """
  hints, out = typing.get_type_hints(cls), {}
  for name, field in options(cls).items():
    if "sections" in field.metadata:
      out[name] = {}
    else:
      inner = dataclasses.is_dataclass(hints[name])
      out[name] = defaults(hints[name], imports) if inner else field.default
  if issubclass(cls, Choice) and (imports or not cls.table.late):
    for method in cls.table.names():
      out |= {key: default for key, default in _unset(cls.table[method].numbers).items()
              if key not in out}
  return out


def _unset(cls) -> dict[str, Any]:
  """Returns a nested dict of the keys of a class of hyperparameters, all None."""
  hints = typing.get_type_hints(cls)
  return {name: _unset(hints[name]) if dataclasses.is_dataclass(hints[name]) else None
          for name in options(cls)}


def keys() -> list[str]:
  """Returns all keys of a config in full, also the hyperparameters of loaded plugins.

  `<name>` is a name that the user chooses.
  """
  full_keys = list(_flat(defaults(Config)))
  hints = typing.get_type_hints(Config)
  for outer, hint in hints.items():
    for name, field in options(hint).items() if dataclasses.is_dataclass(hint) else ():
      if "sections" in field.metadata:
        full_keys += _flat(defaults(field.metadata["sections"]), f"{outer}.{name}.{NAME}.")
  return full_keys


def _flat(tree: dict, prefix: str = ""):
  for key, subtree in tree.items():
    if isinstance(subtree, dict):
      yield from _flat(subtree, f"{prefix}{key}.")
    else:
      yield prefix + key


def from_dict(values) -> Config:
  """Returns the Config of a nested mapping; loads its plugins before any name is looked up.

  Raises:
    ConfigError: unknown keys, wrong types, values out of range, hyperparameters that the method
      does not read: all of them in one message.
  """
  problems = Problems()
  cfg = from_dict_with(values, problems)
  problems.refuse()
  return cfg


def from_dict_with(values, problems: Problems) -> Config:
  """As `from_dict`; what is refused is added to `problems`, and its keys have their defaults."""
  plugins = values.get("plugins") if hasattr(values, "items") else None
  if plugins:
    load_plugins(checked("plugins", plugins, tuple, options(Config)["plugins"].metadata))
  return _section(values, Config, "", problems)


def _section(values, cls, prefix: str, problems: Problems):
  """Returns a section without the keys that were refused, which are added to `problems`."""
  if not hasattr(values, "items"):
    name = prefix.rstrip(".")
    problems.add(ConfigError(
        f"{name or 'the config'} = {shown(values)}: a section of keys was expected, not a value; "
        f"its keys are {', '.join(options(cls))}. Fix: "
        + (f"{prefix}<key>=<value>." if name else "get_config() returns base_config(), changed.")))
    return cls()
  if (odd := _odd_name(values)) is not None:
    problems.add(ConfigError(f"{prefix.rstrip('.') or 'the config'} has the key {odd!r}: names of "
                             "keys are texts. Fix: remove it from the config file."))
    return cls()
  fields = options(cls)
  hints = typing.get_type_hints(cls)
  values_of = {}
  for key in (key for key in values if key in fields):
    with problems:
      values_of[key] = _value(values[key], hints[key], fields[key], prefix + key, problems)
  hyperparameters = {key: value for key, value in values.items() if key not in fields}
  if issubclass(cls, Choice):
    with problems:
      method = values_of.get("name", cls.name)
      values_of |= _numbers(hyperparameters, cls, method, prefix)
  else:
    for key in hyperparameters:
      problems.add(ConfigError(_unknown_key(prefix + key)))
  return cls(**values_of)


def _odd_name(values):
  """Returns a key that is no text, or None. A ConfigDict sorts its keys, and cannot where types
  differ.
  """
  names = values.__dict__.get("_fields", values) if hasattr(values, "__dict__") else values
  return next((name for name in names if not isinstance(name, str)), None)


def _value(value, hint, field, key: str, problems: Problems):
  if "sections" in field.metadata:
    return _named_sections(value, field.metadata["sections"], key, problems)
  if dataclasses.is_dataclass(hint):
    return _section(value, hint, key + ".", problems)
  return checked(key, value, hint, field.metadata)


def _named_sections(values, cls, key: str, problems: Problems) -> tuple:
  """Returns ((name, section), ...), sorted, so that equal configs are equal in any order."""
  if not hasattr(values, "items"):
    raise ConfigError(f"{key} = {values!r}: sections by name were expected. Fix: "
                      f"--config.{key}.{NAME}.{next(iter(options(cls)))}=...")
  for name, subsection in values.items():
    if not re.fullmatch(r"[A-Za-z0-9_-]+", str(name)):
      raise ConfigError(f"{key}: the name {name!r}; allowed are letters, digits, _ and -. Fix: "
                        "another name.")
    if not hasattr(subsection, "items"):
      raise ConfigError(
          f"{key}.{name} = {subsection!r}: a section of keys was expected, not a value; its keys "
          f"are {', '.join(options(cls))}. Fix: {key}.{name}.<key>=<value>.")
  return tuple((str(name), _section(values[name], cls, f"{key}.{name}.", problems))
               for name in sorted(values))


def _numbers(values, cls, name: str, prefix: str) -> dict[str, Any]:
  """Returns the hyperparameters that were set for a method, without None and empty sections."""
  set_values = {key: _without_unset(value) for key, value in values.items()}
  set_values = {key: value for key, value in set_values.items() if value not in (None, {})}
  fields = options(cls.table[name].numbers)
  problems = Problems()
  for key, value in set_values.items():
    with problems:
      if key not in fields and not cls.table.readers(key):
        raise ConfigError(_unknown_key(prefix + key))
      cls.table.refuse_foreign(name, {key: value})
  hints, values_of = typing.get_type_hints(cls.table[name].numbers), {}
  for key in (key for key in set_values if key in fields):
    with problems:
      values_of[key] = _value(set_values[key], hints[key], fields[key], prefix + key, problems)
  problems.refuse()
  return values_of


def _without_unset(setting):
  """Returns the item; of a section, only the keys that were set."""
  if not hasattr(setting, "items"):
    return setting
  return {key: value for key, value in setting.items() if value is not None}


def to_dict(cfg) -> dict[str, Any]:
  """Returns a plain nested dict, from which `from_dict` makes an equal Config (for config.json)."""
  out = {name: {key: to_dict(value) for key, value in getattr(cfg, name)}
         if "sections" in field.metadata else _plain(getattr(cfg, name))
         for name, field in options(type(cfg)).items()}
  if isinstance(cfg, Choice):
    # None would mean the method's default.
    out |= {key: "none" if value is None else _plain(value) for key, value in cfg.given}
  return out


def _plain(value):
  if dataclasses.is_dataclass(value):
    return to_dict(value)
  return list(value) if isinstance(value, tuple) else value


def _unknown_key(full: str) -> str:
  all_keys = [_with_name(key, full) for key in keys()]
  section, _, leaf = full.rpartition(".")
  near = [key for key in all_keys if key.rpartition(".")[0] == section
          and leaf in key.rpartition(".")[2].split("_")]  # rank: lora_rank
  near += difflib.get_close_matches(full, all_keys, n=1, cutoff=0.0)
  same_leaf = [k for k in all_keys if k.rsplit(".", 1)[-1] == full.rsplit(".", 1)[-1]]
  same_leaf = [OTHERS[leaf]] if leaf in OTHERS else same_leaf
  if full in REMOVED:
    return f"{full} is no key any more: {REMOVED[full]}. Fix: remove it."
  return (f"unknown key {full[:SHOWN]}; nearest known key: {(same_leaf or near)[0]}. Fix: that "
          "one, or another of `python -m jaxrl_llm.config --all`.")


def _with_name(key: str, full: str) -> str:
  """Returns `key` with the name that `full` has in place of NAME, if it has one."""
  prefix, separator, suffix = key.partition(f".{NAME}.")
  if not separator or not full.startswith(prefix + "."):
    return key
  return f"{prefix}.{full[len(prefix) + 1:].split('.')[0]}.{suffix}"
