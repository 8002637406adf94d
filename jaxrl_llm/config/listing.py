"""The commented listing of keys: all, or only the keys that a config reads."""

import dataclasses
from collections.abc import Iterator

from jaxrl_llm.config.convert import NAME, keys
from jaxrl_llm.config.root import Config
from jaxrl_llm.fields import allowed, options, unmet_condition
from jaxrl_llm.registry import Choice


def describe(cfg: Config | None = None) -> str:
  """Returns one line per key: its value, meaning, range, and when it is read.

  The hyperparameters of a method follow a line with the method's name.

  Args:
    cfg: lists the keys that this config reads, with its values: hyperparameters only of the chosen
      methods, and no key whose condition does not hold. None: all keys, with their defaults.
  """
  lines = [*_section_lines(Config() if cfg is None else cfg, "", cfg)]
  if cfg is not None:
    printed_keys = {line.split(" = ")[0] for line in lines if not line.startswith("#")}
    lines += ["", f"# {len(set(keys()) - printed_keys)} further keys are read with other choices, "
              "such as another estimator.name or a server.url.",
              "# `python -m jaxrl_llm.config --config=<file> --config.estimator.name=ctpo` lists "
              "those of a run, `--all` lists all."]
  return "\n".join(lines)


def _section_lines(section, prefix: str, root) -> Iterator[str]:
  """Yields the lines of a section whose keys begin with `prefix`; `root` is `cfg` of `describe`."""
  for name, field in options(type(section)).items():
    value = getattr(section, name)
    if "sections" in field.metadata:
      if root is None or value:
        template = field.metadata["sections"]()
        yield from _headed(f"{prefix}{name}.{NAME}: {field.metadata['doc']}",
                           _section_lines(template, f"{prefix}{name}.{NAME}.", root))
    elif dataclasses.is_dataclass(value):
      yield from _headed(prefix + name, _section_lines(value, f"{prefix}{name}.", root))
    elif root is None or unmet_condition(section, field, root) is None:
      yield _line(field, value, prefix, section)
  if isinstance(section, Choice):
    named = "name" in options(type(section))
    methods = section.table.names() if named and root is None else [section.name]
    for method in methods:
      entry = section.table[method]
      hyperparameters = entry.numbers() if root is None else section.table.numbers(section)
      lines = _section_lines(hyperparameters, prefix, root)
      yield from _headed(f"{prefix}name = {method}", lines, gap=False) if named else lines


def _headed(heading: str, lines: Iterator[str], gap: bool = True) -> Iterator[str]:
  """Yields a comment with the heading, and the lines; nothing without any."""
  for index, line in enumerate(lines):
    if index == 0:
      yield from ["", f"# {heading}"] if gap else [f"# {heading}"]
    yield line


def _line(field: dataclasses.Field, value, prefix: str, section) -> str:
  """Returns the line of one key."""
  meta = field.metadata
  choices = meta["choices"]
  if isinstance(section, Choice) and field.name == "name":
    choices = section.table.names()
  limits = ", ".join(map(str, choices)) if choices else allowed(meta)
  if meta.get("auto"):
    limits = f"{limits}, or auto" if limits else "or auto"
  comment = meta["doc"] + (f" [{limits}]" if limits else "")
  for condition in meta["when"]:
    key = prefix + condition.key[1:] if condition.key.startswith(".") else condition.key
    comment += f" [with {condition.describe(key)}]"
  return f"{prefix + field.name + ' = ' + repr(value):<43} # {comment}"
