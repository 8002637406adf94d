"""Configuration options: documentation, range, and the condition under which each is read."""

import ast
import dataclasses
import difflib
import functools
import importlib.util
import math
import os
import shlex
import sys
import types
import typing

DEFAULT = "default"  # the value of a choice that another key decides
AUTO = "auto"  # the value of a key that a run's start decides (wiring/automatic.py)
FLOAT32_MAX = (2 - 2**-23) * 2.0**127
INT64_MAX = 2**63 - 1
SHOWN = 400  # characters of a value in a message
# How keys end that hold a path, or several with commas between, where ~ is the home folder.
PATHS = ("path", "file", "folder", "examples", "pretrained")


class ConfigError(Exception):
  """A configuration that cannot run. The message names key, value, allowed range and fix.

  Args:
    message: in words.
    fixes: {key: value} that mends it, where a value is known; a message of several problems ends
      with these as flags.

  Attributes:
    parts: the errors that one message was made of; empty for a single problem.
  """

  def __init__(self, message: str, fixes: dict | None = None, parts: tuple = ()):
    super().__init__(message)
    self.fixes, self.parts = dict(fixes or {}), tuple(parts)


class PluginError(ConfigError):
  """A method that failed, or returned what its kind does not. The message names its place."""


def is_exhausted(error: BaseException) -> bool:
  """Returns whether an error says that a device has no memory left."""
  return "RESOURCE_EXHAUSTED" in str(error)  # JAX's status


class Problems:
  """Collects what independent checks refuse, so that one message names all of it.

  Each check runs in a separate `with` block, which a ConfigError leaves; `refuse` raises them.
  """

  def __init__(self):
    self.errors: list[ConfigError] = []

  def __enter__(self):
    return self

  def __exit__(self, kind, error, traceback) -> bool:
    if not isinstance(error, ConfigError):
      return False
    self.add(error)
    return True

  def add(self, error: ConfigError) -> None:
    """Adds an error, or the parts of one; the same message only once."""
    messages = {str(earlier) for earlier in self.errors}
    self.errors += [part for part in error.parts or (error,) if str(part) not in messages]

  def refuse(self) -> None:
    """Raises the errors: the only one as it is, several as a numbered list.

    Raises:
      ConfigError: there was an error.
    """
    if not self.errors:
      return
    if len(self.errors) == 1:
      raise self.errors[0]
    fixes = {key: value for error in reversed(self.errors) for key, value in error.fixes.items()}
    lines = [f"{number}. {error}" for number, error in enumerate(self.errors, 1)]
    if fixes:
      lines.append("These flags mend what a value can: " + flags_of(fixes))
    raise ConfigError("\n".join([f"{len(self.errors)} problems", *lines]), fixes,
                      tuple(self.errors))


def flags_of(fixes: dict) -> str:
  """Returns {key: value} as flags of a command."""
  return " ".join(f"--config.{key}={shlex.quote(str(value))}" for key, value in fixes.items())


def installing(extra: str) -> str:
  """Returns the command that adds an extra of the package to the running interpreter, from a
  checkout. Environments that uv makes have no pip.
  """
  if importlib.util.find_spec("pip"):
    return f"pip install -e '.[{extra}]'"
  return f"uv pip install --python {shlex.quote(sys.executable)} -e '.[{extra}]'"


@dataclasses.dataclass(frozen=True)
class When:
  """The condition under which an option is read.

  Attributes:
    key: another option, by its full key (`rollout.slots`), or with a leading dot if it is in the
      same section (`.style`).
    values: the option is read with these values of `key`. Empty: with every value that switches
      `key` on: not 0, False, None, "none" or empty.
    above: the option is read if `key` exceeds this number; None: no such bound.
    text: the condition in words; empty: made from the other attributes.
  """

  key: str
  values: tuple = ()
  above: float | None = None
  text: str = ""

  def holds(self, value) -> bool:
    """Returns whether the condition holds for this value of `key`."""
    if self.above is not None:
      return value > self.above
    return value in self.values if self.values else bool(value) and value != "none"

  def value_in(self, section, root):
    """Returns the value of `key`, in the option's section or, without a leading dot, in `root`."""
    base = section if self.key.startswith(".") else root
    return functools.reduce(getattr, self.key.strip(".").split("."), base)

  def describe(self, key: str, present=None) -> str:
    """Returns the condition in words.

    Args:
      key: the full key.
      present: its value, whose type tells how it is switched on; None: unknown.
    """
    if self.text:
      return self.text
    if self.above is not None:
      return f"{key} > {self.above}"
    if self.values:
      return f"{key} = {' or '.join(map(str, self.values))}"
    if isinstance(present, bool):
      return f"{key} = True"
    return f"{key} > 0" if isinstance(present, (int, float)) else f"{key} set"


def when(key: str, *values, above: float | None = None, text: str = "") -> When:
  """Returns a `When`."""
  return When(key, values, above, text)


def option(default, doc: str, *, low=None, high=None, choices=None, of=str, when=(), auto=False):
  """Returns a config field with its documentation, and its range or its choices.

  Args:
    default: value of the field.
    doc: one line of documentation.
    low, high: closed range of a number; None: open.
    choices: the allowed values; None: every value in the range.
    of: for a tuple, the type of its entries.
    when: one `When` or several, which must all hold. Otherwise the option is refused if it is set
      to another value than its default (`refuse_unread`).
    auto: whether the value may be AUTO.
  """
  conditions = (when,) if isinstance(when, When) else tuple(when)
  metadata = {"doc": doc, "low": low, "high": high, "choices": choices, "of": of,
              "when": conditions, "auto": auto}
  return dataclasses.field(default=default, metadata=metadata)


def derived(default, doc: str):
  """Returns a field that is not a key: its value follows from other options."""
  return dataclasses.field(default=default, metadata={"derived": doc})


def sections(cls, doc: str):
  """Returns a config field of sections by name: a tuple of (name, section), sorted by name.

  Args:
    cls: of the sections, a dataclass of options.
    doc: one line of documentation.
  """
  metadata = {"doc": doc, "low": None, "high": None, "choices": None, "of": tuple, "when": (),
              "sections": cls}
  return dataclasses.field(default=(), metadata=metadata)


def options(cls) -> dict[str, dataclasses.Field]:
  """Returns the fields of a section that are keys or sections, by name."""
  return {f.name: f for f in dataclasses.fields(cls) if "derived" not in f.metadata}


def unread(section, prefix: str, root=None):
  """Yields each option that was changed from its default although nothing reads it.

  Args:
    section: a dataclass of options; sections within it are not entered.
    prefix: of its keys in messages, such as `rollout.`.
    root: the config that full keys of conditions are looked up in; None: only conditions on the
      same section are checked.

  Yields:
    (name of the option, message with its value, the condition that does not hold, and the fix).
  """
  for field in dataclasses.fields(section):
    value = getattr(section, field.name)
    condition = None if value == field.default else unmet_condition(section, field, root)
    if condition is not None:
      key = prefix + condition.key[1:] if condition.key.startswith(".") else condition.key
      present = condition.value_in(section, root)
      state = "" if condition.text else f" with {key} = {present!r}"
      requirement = condition.describe(key, present)
      yield field.name, (f"{prefix}{field.name} = {value!r}{state}: it is read only with "
                         f"{requirement}. Fix: {requirement}, or {prefix}{field.name} = "
                         f"{field.default!r}, the default.")


def unmet_condition(section, field: dataclasses.Field, root=None) -> When | None:
  """Returns the first condition of an option that does not hold; None if it is read.

  Args:
    section: the dataclass of options that has the field.
    root: as in `unread`.
  """
  for condition in field.metadata.get("when", ()):
    resolvable = condition.key.startswith(".") or root is not None
    if resolvable and not condition.holds(condition.value_in(section, root)):
      return condition
  return None


def refuse_unread(section, prefix: str, root=None) -> None:
  """Raises ConfigError for the first option that nothing reads; arguments as `unread`."""
  for _, message in unread(section, prefix, root):
    raise ConfigError(message)


def divisors(n: int) -> str:
  """Returns the divisors of a number as a message lists them."""
  small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
  return ", ".join(map(str, sorted({*small, *(n // k for k in small)})))


def did_you_mean(name: str, known) -> str:
  """Returns a hint at the nearest known name, after a sentence that lists all of them."""
  near = difflib.get_close_matches(name, known, n=1)
  return f" Fix: one of these. Did you mean {near[0]!r}?" if near else " Fix: one of these."


def shown(value) -> str:
  """Returns a value as a message shows it: its `repr`, cut in the middle where it is long."""
  try:
    text = repr(value)
  except Exception as error:  # an integer of 5,000 digits, or an object that cannot be shown
    return f"<{type(value).__name__}, which cannot be shown: {type(error).__name__}>"
  return text if len(text) <= SHOWN else f"{text[:SHOWN // 2]} ... {text[-SHOWN // 4:]}"


def checked(key: str, value, hint, meta):
  """Returns `value` in the field's type, if it is in the field's range.

  The text "none" means None where the field admits None.

  Raises:
    ConfigError: a wrong type, a value out of range, or a choice that is not allowed.
  """
  if meta.get("auto") and isinstance(value, str):
    if value == AUTO:
      return AUTO
    value = _literal(value)  # a flag of a key whose value in the file is a text
  optional = admits(hint, type(None))
  if optional and (value is None or (isinstance(value, str) and value.lower() == "none")):
    return None
  # One number of a tuple of numbers: "3" on a command line is not (3,).
  single = hint is tuple and meta["of"] is type(value) is int
  setting = (value,) if single else _converted(value, hint)
  if isinstance(setting, str) and key.endswith(PATHS):
    setting = ",".join(map(os.path.expanduser, setting.split(",")))
  if isinstance(setting, tuple) and not all(isinstance(i, meta["of"]) for i in setting):
    setting = None
  if setting is None:
    type_name = _type_name(hint) + (' or "none"' if optional else "")
    raise ConfigError(f"{key} = {shown(value)}: {type_name} was expected "
                      f"({allowed(meta) or meta['doc']}). Fix: --config.{key}=<{type_name}>.")
  if meta["choices"] and setting not in meta["choices"]:
    choices = ", ".join(map(repr, meta["choices"]))
    raise ConfigError(f"{key} = {shown(value)}: allowed are {choices}."
                      f"{did_you_mean(str(setting), meta['choices'])}")
  if not isinstance(setting, (str, tuple, bool)) and not _inside(setting, meta):
    raise ConfigError(f"{key} = {shown(value)}: out of range; {allowed(meta)} ({meta['doc']}). "
                      f"Fix: choose a value in the range.")
  return setting


def _literal(text: str):
  """Returns the number or truth value that a text writes, or the text."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def _inside(number, meta) -> bool:
  """Returns whether a number is within its range, and within int64 or float32."""
  low, high = meta["low"], meta["high"]
  limit = INT64_MAX if isinstance(number, int) else FLOAT32_MAX
  finite = number == number and abs(number) <= limit
  return finite and (low is None or number >= low) and (high is None or number <= high)


def admits(hint, kind) -> bool:
  """Returns whether a field of this type may hold a value of `kind`."""
  return hint is kind or kind in typing.get_args(hint)


def _converted(value, hint):
  """Returns the value in the field's type, or None if it does not fit."""
  if getattr(value, "shape", None) == ():  # a scalar of numpy
    value = value.item()
  if isinstance(value, bool):
    return value if admits(hint, bool) else None
  if isinstance(value, int):
    return value if admits(hint, int) else float(value) if admits(hint, float) else None
  if isinstance(value, float):
    is_integral = admits(hint, int) and value.is_integer()
    return value if admits(hint, float) else int(value) if is_integral else None
  if isinstance(value, str):
    return value if admits(hint, str) else (value,) if hint is tuple else None
  if isinstance(value, (list, tuple)):
    return _nested(value) if hint is tuple else None
  return None


def _nested(values):
  """Returns nested tuples, so that a config stays hashable."""
  return tuple(_nested(i) if isinstance(i, (list, tuple)) else i for i in values)


def _type_name(hint) -> str:
  if isinstance(hint, types.UnionType):
    kinds = [a.__name__ for a in typing.get_args(hint) if a is not type(None)]
    return " or ".join(kinds)
  return hint.__name__


def allowed(meta) -> str:
  """Returns the range in words; empty if there is none."""
  low, high = meta["low"], meta["high"]
  if low is None and high is None:
    return ""
  return f"allowed: {'-inf' if low is None else low} to {'inf' if high is None else high}"
