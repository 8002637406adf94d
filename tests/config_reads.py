"""Records which keys of a config real code reads, by watching attribute reads of the sections."""

import contextlib
import dataclasses
import sys
import typing
from pathlib import Path

from jaxrl_llm import config, fields
from jaxrl_llm.registry import Choice

PACKAGE = Path(fields.__file__).parent
# Reading a key to convert, check, hash or copy it is not a use of it.
HANDLING = ("<string>", dataclasses.__file__, str(PACKAGE / "config"), str(PACKAGE / "fields.py"),
            str(PACKAGE / "registry.py"), __file__)
# What jitted functions get in place of sections: field -> key.
DERIVED = {
    config.LossConfig: {
        "temperature": "rollout.temperature", "num_experts": "model.num_experts",
        "min_new_tokens": "rollout.min_new_tokens", "max_new_tokens": "rollout.max_new_tokens",
        "rules": ("vocabulary.top_k", "vocabulary.top_p", "vocabulary.min_p", "vocabulary.side"),
    },
    config.BatchConfig: {
        "group_size": "rollout.group_size", "parts": "updates.optimizer_batches"
    },
    config.StepConfig: {"micro_batches": "updates.micro_batches"},
    config.SamplerConfig: {
        "group_size": "rollout.group_size", "max_new_tokens": "rollout.max_new_tokens",
        "window": "rollout.window", "min_new_tokens": "rollout.min_new_tokens"
    },
}


def watched(cls, prefix: str = ""):
  """Yields (class, field -> key) for a section, the sections in it, and the numbers of methods."""
  hints = typing.get_type_hints(cls)
  names = fields.options(cls)
  for name, field in names.items():
    if "sections" in field.metadata:
      yield from watched(field.metadata["sections"], f"{prefix}{name}.<name>.")
  names = {name: field for name, field in names.items() if "sections" not in field.metadata}
  inner = {name for name in names if dataclasses.is_dataclass(hints[name])}
  numbers = {}
  for name in inner:
    yield from watched(hints[name], f"{prefix}{name}.")
  if issubclass(cls, Choice):
    for method in cls.table.names():
      entry = cls.table[method].numbers
      yield from watched(entry, prefix)
      numbers |= {name: prefix + name for name in fields.options(entry)}
  yield cls, {name: prefix + name for name in names if name not in inner} | numbers


def _used(frame) -> bool:
  return not frame.f_code.co_filename.startswith(HANDLING)


@contextlib.contextmanager
def recorded(root=config.Config):
  """Yields a set that grows by each key that is read, until the context ends."""
  read, keys, originals = set(), {}, {}
  for cls, names in [*watched(root), *DERIVED.items()]:
    for name, key in names.items():
      keys.setdefault(cls, {}).setdefault(name, set()).update((key,) if isinstance(key, str) else
                                                              key)

  def watch(cls):
    original = cls.__getattribute__

    def get(self, name):
      known = keys.get(type(self), {}).get(name)
      if known and _used(sys._getframe(1)):
        read.update(known)
      return original(self, name)

    originals[cls] = cls.__dict__.get("__getattribute__")
    cls.__getattribute__ = get

  for cls in keys:
    if not any(base in originals for base in cls.__mro__):
      watch(cls)
  try:
    yield read
  finally:
    for cls, original in originals.items():
      if original is None:
        del cls.__getattribute__
      else:
        cls.__getattribute__ = original
