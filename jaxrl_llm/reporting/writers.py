"""Writes metrics as JSON lines and TensorBoard events, and rollouts as JSON lines."""

import glob
import json
import math
import os
from typing import Any

from tensorboard.summary import Writer

from jaxrl_llm.reporting.reader import read_metrics, rollout_path


class MetricsWriter:
  """Appends to workdir/metrics.jsonl, the record, and to workdir/tensorboard, a copy of it.

  A line is on disk when `write` returns. A line that a crash left incomplete is dropped when the
  file is opened again.
  """

  def __init__(self, workdir: str | os.PathLike):
    os.makedirs(workdir, exist_ok=True)
    self._path = os.path.join(workdir, "metrics.jsonl")
    self._events = os.path.join(workdir, "tensorboard")
    self._file = _open_after_last_line(self._path)
    self._tensorboard = Writer(self._events)

  def write(self, iteration: int, values: dict[str, float]) -> None:
    """Appends one line of numbers, finite or not; call it at most once per iteration."""
    if "iteration" in values:
      raise ValueError("a metric cannot be named `iteration`: the line has that key already.")
    self._file.write(_line(iteration, values).encode())
    self._file.flush()
    os.fsync(self._file.fileno())
    self._add_scalars(iteration, values)
    self._tensorboard.flush()

  def cut_back(self, iteration: int) -> None:
    """Drops all iterations after `iteration` from both files, before a run resumes there."""
    lines = [dict(line) for line in read_metrics(self._path) if line["iteration"] <= iteration]
    kept = [(line.pop("iteration"), line) for line in lines]
    self.close()
    write_atomically(self._path, "".join(_line(at, values) for at, values in kept))
    for path in glob.glob(os.path.join(glob.escape(self._events), "events.out.tfevents.*")):
      os.remove(path)
    self._file = _open_after_last_line(self._path)
    self._tensorboard = Writer(self._events)
    for at, values in kept:
      self._add_scalars(at, values)
    self._tensorboard.flush()

  def close(self) -> None:
    self._file.close()
    self._tensorboard.close()

  def _add_scalars(self, iteration: int, values: dict[str, float]) -> None:
    for name, value in values.items():
      self._tensorboard.add_scalar(name, float(value), iteration)


def write_rollouts(workdir: str | os.PathLike, iteration: int, rows: list[dict[str, Any]]) -> str:
  """Writes the rows of iteration 12 to workdir/rollouts/iteration_00012.jsonl; returns the path.

  The file appears complete or not at all.

  Args:
    workdir: the run's folder.
    iteration: names the file.
    rows: JSON-like; numpy arrays and scalars are allowed. Floats keep 6 significant digits.
  """
  path = rollout_path(workdir, iteration)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  write_atomically(path, "".join(_dumps(_plain(row, digits=6)) for row in rows))
  return path


def write_atomically(path: str | os.PathLike, content: str | bytes) -> None:
  """Replaces the file at `path`; a reader sees the old or the new content, even after a crash."""
  temporary = f"{os.fspath(path)}.tmp"
  with open(temporary, "wb") as file:
    file.write(content if isinstance(content, bytes) else content.encode(errors="replace"))
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def _open_after_last_line(path: str):
  file = open(path, "a+b")
  file.seek(0)
  file.truncate(file.read().rfind(b"\n") + 1)
  return file


def _line(iteration: int, values: dict[str, float]) -> str:
  numbers = {name: _plain(float(value)) for name, value in values.items()}
  return _dumps({"iteration": int(iteration)} | numbers)


def _dumps(item: dict[str, Any]) -> str:
  return json.dumps(item, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(item, digits: int | None = None):
  """Converts arrays to lists and non-finite floats to "nan", "inf" and "-inf", for strict JSON.

  Other floats are rounded to `digits` significant digits; None keeps them.
  """
  if hasattr(item, "tolist"):
    item = item.tolist()
  if isinstance(item, dict):
    return {str(key): _plain(value, digits) for key, value in item.items()}
  if isinstance(item, (list, tuple)):
    return [_plain(value, digits) for value in item]
  if not isinstance(item, float):
    return item
  if not math.isfinite(item):
    return str(item)
  return item if digits is None else float(f"{item:.{digits}g}")
