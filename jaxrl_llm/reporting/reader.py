"""Reads the JSON files of a run's folder; experiments/report/run_folder.py reads a whole one."""

import json
import operator
from typing import Any

from jaxrl_llm.store.folders import path_of

ARRAYS = "arrays"  # key of facts: name and checksum of the file with their arrays
COPY = "Fix: a whole copy of the file, or another iteration or run."
NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class RunError(ValueError):
  """A run's folder that cannot be read: the message names file, line and cause."""


def read_metrics(path: str) -> list[dict[str, Any]]:
  """Reads metrics.jsonl: one dict per line, sorted by iteration; all values but it are floats."""
  lines, line_of = [], {}
  for number, raw in enumerate(read_lines(path), 1):
    iteration = raw.get("iteration")
    if not isinstance(iteration, int) or isinstance(iteration, bool):
      raise RunError(
          f'{path}, line {number}: key "iteration" should be an integer; it is {iteration!r}. '
          f"{COPY}")
    if iteration in line_of:
      raise RunError(
          f"{path}, line {number}: iteration {iteration} is already on line {line_of[iteration]}. "
          f"{COPY}")
    line_of[iteration] = number
    lines.append({
        name: value if name == "iteration" else _number(value, f"{path}, line {number}: {name}")
        for name, value in raw.items()
    })
  return sorted(lines, key=operator.itemgetter("iteration"))


def read_lines(path: str) -> list[dict[str, Any]]:
  """Reads the objects of a .jsonl file.

  A last line without its newline is left out: a crash tore it, or it is still being written.
  """
  complete = read_text(path).split("\n")[:-1]
  return [_parse(line, path, number) for number, line in enumerate(complete, 1)]


def read_json(path: str) -> dict[str, Any]:
  """Reads the object in a .json file."""
  return _parse(read_text(path), path)


def read_text(path: str) -> str:
  """Reads a text file; bytes that are none are replaced."""
  try:
    return path_of(path).read_bytes().decode("utf-8", errors="replace")
  except OSError as error:
    raise RunError(f"{path}: {error.strerror}. Fix: the folder of a run.") from error


def _parse(text: str, path: str, number: int | None = None) -> dict[str, Any]:
  """Parses one object; `text` is line `number` of the file, or without `number` all of it."""
  location = path if number is None else f"{path}, line {number}"
  try:
    value = json.loads(text, parse_constant=_refuse)
  except json.JSONDecodeError as error:
    raise RunError(
        f"{path}, line {number or error.lineno}: not JSON ({error.msg}): {error.doc[:60]!r}. {COPY}"
    ) from error
  except (ValueError, RecursionError) as error:
    raise RunError(f"{location}: {error}. {COPY}") from error
  if not isinstance(value, dict):
    raise RunError(f"{location}: an object was expected: {text[:60]!r}. {COPY}")
  return value


def _refuse(constant: str):
  raise ValueError(
      f'{constant} is not JSON; non-finite numbers are written as "nan", "inf", "-inf".')


def _number(value, location: str) -> float:
  if isinstance(value, str) and value in NOT_FINITE:
    return NOT_FINITE[value]
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise RunError(f"{location} = {value!r} is not a number. {COPY}")
  return float(value)
