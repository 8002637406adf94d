"""Reads a run's folder back; the inverse of `writers.py`."""

import dataclasses
import json
import os
import re
from typing import Any

import numpy as np

NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class RunError(ValueError):
  """A run's folder that cannot be read: the message names file, line and cause."""


@dataclasses.dataclass(frozen=True)
class Run:
  """One run, read from its folder.

  Attributes:
    workdir: the folder.
    config: resolved configuration, nested.
    environment: versions, devices, git commit; empty if none was written.
    metrics: one dict per iteration, sorted; key "iteration" is an int, all others are floats.
  """

  workdir: str
  config: dict[str, Any]
  environment: dict[str, Any]
  metrics: list[dict[str, Any]]

  def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Iterations that logged `name`, and its values there; both empty if none did."""
    lines = [line for line in self.metrics if name in line]
    return np.array([line["iteration"] for line in lines],
                    int), np.array([line[name] for line in lines], float)

  def rollout_iterations(self) -> list[int]:
    """Iterations whose rollouts were kept, sorted."""
    folder = os.path.join(self.workdir, "rollouts")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(
        int(found[1]) for found in (re.fullmatch(r"iteration_(\d+)\.jsonl", name)
                                    for name in names) if found)

  def rollouts(self, iteration: int) -> list[dict[str, Any]]:
    """Rows as written. A non-finite number is the text "nan", "inf" or "-inf", which `np.asarray(x,
    float)` reads.
    """
    return read_lines(rollout_path(self.workdir, iteration))


def rollout_path(workdir: str | os.PathLike, iteration: int) -> str:
  return os.path.join(workdir, "rollouts", f"iteration_{iteration:05d}.jsonl")


def read_run(workdir: str | os.PathLike) -> Run:
  """The run in `workdir`; also works while it is being written.

  Raises:
    RunError: no configuration or metrics there, or a line that is not what the writer writes.
  """
  workdir = os.fspath(workdir)
  environment = os.path.join(workdir, "environment.json")
  return Run(workdir, read_json(os.path.join(workdir, "config.json")),
             read_json(environment) if os.path.exists(environment) else {},
             read_metrics(os.path.join(workdir, "metrics.jsonl")))


def read_metrics(path: str) -> list[dict[str, Any]]:
  """Lines of metrics.jsonl, sorted by iteration, non-finite numbers turned back."""
  lines, line_of = [], {}
  for number, raw in enumerate(read_lines(path), 1):
    iteration = raw.get("iteration")
    if not isinstance(iteration, int) or isinstance(iteration, bool):
      raise RunError(
          f'{path}, line {number}: key "iteration" should be an integer; it is {iteration!r}.')
    if iteration in line_of:
      raise RunError(
          f"{path}, line {number}: iteration {iteration} is already on line {line_of[iteration]}.")
    line_of[iteration] = number
    lines.append({
        name: item if name == "iteration" else _number(item, f"{path}, line {number}: {name}")
        for name, item in raw.items()
    })
  return sorted(lines, key=lambda line: line["iteration"])


def read_lines(path: str) -> list[dict[str, Any]]:
  """Objects of a .jsonl file. A last line without its newline is torn, or still being written, and
  is left out.
  """
  complete = _text(path).split("\n")[:-1]
  return [_parse(line, path, number) for number, line in enumerate(complete, 1)]


def read_json(path: str) -> dict[str, Any]:
  """The object in a .json file."""
  return _parse(_text(path), path)


def _text(path: str) -> str:
  try:
    with open(path, "rb") as file:
      return file.read().decode("utf-8", errors="replace")
  except OSError as error:
    raise RunError(f"{path}: {error.strerror}. Is this a run's folder?") from error


def _parse(text: str, path: str, number: int | None = None) -> dict[str, Any]:
  """The object in `text`, which is line `number` of the file, or all of it."""
  where = path if number is None else f"{path}, line {number}"
  try:
    parsed = json.loads(text, parse_constant=_refuse)
  except json.JSONDecodeError as error:
    raise RunError(
        f"{path}, line {number or error.lineno}: not JSON ({error.msg}): {error.doc[:60]!r}"
    ) from error
  except ValueError as error:
    raise RunError(f"{where}: {error}") from error
  if not isinstance(parsed, dict):
    raise RunError(f"{where}: an object was expected: {text[:60]!r}")
  return parsed


def _refuse(constant: str):
  raise ValueError(
      f'{constant} is not JSON; non-finite numbers are written as "nan", "inf", "-inf".')


def _number(item, where: str) -> float:
  if isinstance(item, str) and item in NOT_FINITE:
    return NOT_FINITE[item]
  if isinstance(item, bool) or not isinstance(item, (int, float)):
    raise RunError(f"{where} = {item!r} is not a number.")
  return float(item)
