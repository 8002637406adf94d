"""Reads the files of a run's folder; the inverse of `writers.py`."""

import dataclasses
import json
import operator
import os
from typing import Any

import numpy as np

from jaxrl_llm.reporting import token_columns
from jaxrl_llm.store.files import FACTS, rollout_files, rollout_part, rollout_path, rollout_paths
from jaxrl_llm.store.folders import path_of

ARRAYS = "arrays"  # key of facts: name and checksum of the file with their arrays
COPY = "Fix: a whole copy of the file, or another iteration or run."
NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class RunError(ValueError):
  """A run's folder that cannot be read: the message names file, line and cause."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """One run as its folder describes it; the run may still be running.

  Attributes:
    workdir: the folder.
    config: resolved configuration, nested.
    environment: versions, devices, git commit; empty if the file is missing.
    metrics: one dict per iteration, sorted; key "iteration" is an int, all others are floats.
  """

  workdir: str
  config: dict[str, Any]
  environment: dict[str, Any]
  metrics: list[dict[str, Any]]

  def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns (iterations [I] int that logged `name`, its values [I] float)."""
    lines = [line for line in self.metrics if name in line]
    iterations = np.array([line["iteration"] for line in lines], int)
    return iterations, np.array([line[name] for line in lines], float)

  def rollout_iterations(self) -> list[int]:
    """Returns the iterations whose rollouts were kept, by all processes, sorted."""
    return sorted(iteration for iteration, paths in rollout_files(self.workdir).items()
                  if len(paths) == rollout_part(paths[0])[1])

  def rollouts(self, iteration: int) -> list[dict[str, Any]]:
    """Returns the rows of an iteration as written; rows of several processes are in the processes'
    order.

    Per-token entries are arrays [length], also where an earlier version wrote lists. A non-finite
    number of another entry is the text "nan", "inf" or "-inf", which `np.asarray(x, float)` reads.

    Raises:
      RunError: a file is missing or damaged.
    """
    paths = rollout_paths(self.workdir, iteration) or [rollout_path(self.workdir, iteration)]
    return [row for path in paths for row in read_rollouts(path)]


def read_rollouts(path: str) -> list[dict[str, Any]]:
  """Returns the rows of a file of rollouts, with the arrays of the file next to it.

  Raises:
    RunError: one of the two is missing or damaged, or they do not belong together.
  """
  if not _text(path).endswith("\n"):
    raise RunError(f"{path}: the last line is torn, or the file is empty; a run writes it "
                   f"completely or not at all. {COPY}")
  rows = read_lines(path)
  marks = {str(row.pop(ARRAYS, "")) for row in rows}
  if marks == {""}:
    return [_with_arrays(row, path, number) for number, row in enumerate(rows, 1)]
  columns = _columns(path, marks)
  for name, arrays in columns.items():
    if len(arrays) != len(rows):
      raise RunError(f"{path}: {len(rows)} lines, of which column {name} beside it has "
                     f"{len(arrays)}. {COPY}")
    for number, (row, array) in enumerate(zip(rows, arrays, strict=True), 1):
      if name in row:
        raise RunError(f"{path}, line {number}: {name} stands here and in the file of arrays. "
                       f"{COPY}")
      row[name] = array
  return rows


def _with_arrays(row: dict[str, Any], path: str, number: int) -> dict[str, Any]:
  """Returns a row of an earlier version, with arrays in place of its lists."""
  try:
    return row | {name: np.asarray(row[name], dtype)
                  for name, dtype in token_columns.LISTS.items() if row.get(name) is not None}
  except (TypeError, ValueError, OverflowError) as error:
    raise RunError(f"{path}, line {number}: not numbers by token ({error}). {COPY}") from error


def _columns(path: str, marks: set[str]) -> dict[str, list[np.ndarray]]:
  """Returns the arrays stored next to a file of facts.

  Args:
    marks: what its lines say of them, see `token_columns.mark`.
  """
  mark = marks.pop()
  name, _, checksum = mark.partition(" ")
  stem, form = os.path.splitext(name)
  if marks or not checksum or os.path.basename(path) != stem + FACTS:
    raise RunError(f"{path}: the lines name no file of arrays, or several. {COPY}")
  array_path = os.path.join(os.path.dirname(path), name)
  try:
    content = path_of(array_path).read_bytes()
    if token_columns.mark(name, content) != mark:
      raise ValueError(f"the checksum is not {checksum}, which {path} names: it is damaged, or of "
                       "another start of the run")
    return token_columns.decode(content, form)
  except OSError as error:
    fault = error.strerror or error
    raise RunError(f"{array_path}: {fault}, but {path} names it. {COPY}") from error
  except ValueError as error:
    raise RunError(f"{array_path}: {error}. {COPY}") from error


def read_run(workdir: str | os.PathLike) -> RunFolder:
  """Reads the run in `workdir`, also while the run is writing.

  Raises:
    RunError: config.json or metrics.jsonl is missing, or a line is not what the writer writes.
  """
  workdir = os.fspath(workdir)
  environment = os.path.join(workdir, "environment.json")
  return RunFolder(
      workdir,
      config=read_json(os.path.join(workdir, "config.json")),
      environment=read_json(environment) if path_of(environment).exists() else {},
      metrics=read_metrics(os.path.join(workdir, "metrics.jsonl")),
  )


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
  complete = _text(path).split("\n")[:-1]
  return [_parse(line, path, number) for number, line in enumerate(complete, 1)]


def read_json(path: str) -> dict[str, Any]:
  """Reads the object in a .json file."""
  return _parse(_text(path), path)


def _text(path: str) -> str:
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
