"""Writes metrics and rollouts as JSON lines."""

import contextlib
import io
import json
import logging
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxrl_llm.reporting import token_columns
from jaxrl_llm.reporting.metric_writers import Copies
from jaxrl_llm.reporting.reader import ARRAYS, read_metrics
from jaxrl_llm.store.files import (
  FACTS,
  rollout_files,
  rollout_part,
  rollout_path,
  write_atomically,
)
from jaxrl_llm.store.folders import is_bucket, path_of

logger = logging.getLogger(__name__)
__all__ = ["DIGITS", "MetricsWriter", "NoWriter", "plain", "prune_rollouts", "write_atomically",
           "write_rollouts"]
DIGITS = 6  # significant ones that floats among the facts of rollouts keep


class MetricsWriter:
  """Appends to workdir/metrics.jsonl, the record, and hands each line to the writers of copies.

  A line is on disk when `write` returns. A last line that a crash left incomplete is dropped, with
  a warning, when the file is opened again; one that lacks only its line break gets it.

  Args:
    workdir: the run's folder.
    copies: what else gets the metrics; None: nothing.
  """

  def __init__(self, workdir: str | os.PathLike, copies: Copies | None = None):
    path_of(workdir).mkdir(parents=True, exist_ok=True)
    self._path = os.path.join(workdir, "metrics.jsonl")
    self._file = _opened(self._path)
    self._copies = copies

  def write(self, iteration: int, values: dict[str, float]) -> None:
    """Appends one line of numbers, finite or not; call it at most once per iteration."""
    if "iteration" in values:
      raise ValueError("a metric cannot be named `iteration`: the line has that key already.")
    numbers = np.fromiter(values.values(), np.float64, len(values))
    self._file.write(_line(iteration, values, numbers).encode())
    self._file.flush()
    if not isinstance(self._file, _WholeFile):
      os.fsync(self._file.fileno())
    if self._copies is not None:
      self._copies.write(iteration, dict(zip(values, numbers.tolist(), strict=True)))

  def cut_back(self, iteration: int) -> None:
    """Drops all iterations after `iteration`, before a run begins or resumes there."""
    lines = [dict(line) for line in read_metrics(self._path) if line["iteration"] <= iteration]
    remainder = [(line.pop("iteration"), line) for line in lines]
    self._file.close()
    text = [_line(number, values, np.fromiter(values.values(), np.float64, len(values)))
            for number, values in remainder]
    write_atomically(self._path, "".join(text))
    self._file = _opened(self._path)
    if self._copies is not None:
      self._copies.restart(remainder)

  def close(self) -> None:
    """Closes the file and the copies."""
    self._file.close()
    if self._copies is not None:
      self._copies.close()


class NoWriter:
  """Writes nothing: process 0 writes the metrics of a run."""

  def write(self, iteration: int, values: dict[str, float]) -> None:
    del iteration, values

  def cut_back(self, iteration: int) -> None:
    del iteration

  def close(self) -> None:
    pass


def write_rollouts(workdir: str | os.PathLike, iteration: int, rows: list[dict[str, Any]],
                   part: tuple[int, int] = (0, 1)) -> str:
  """Writes the rows of iteration 12 to workdir/rollouts/iteration_00012.jsonl; returns the path.

  With several processes, the name ends in -00001-of-00004.jsonl. Other files of the iteration that
  another number of processes, or another form of arrays, left are removed.

  Arrays of one axis go to iteration_00012.parquet or .npz (token_columns.py), which is written
  first, and which each line of the facts names with its checksum: a run that is killed between the
  two leaves arrays that nothing names, or facts whose arrays are refused when they are read. Each
  file is complete or absent.

  Args:
    workdir: the run's folder.
    iteration: names the file.
    rows: JSON-able, but for numpy arrays. Arrays of one axis in all rows are exact; floats of
      others keep `DIGITS` significant digits.
    part: (which process, of how many) the rows are of; each process writes separate files.
  """
  path = rollout_path(workdir, iteration, part)
  path_of(path).parent.mkdir(parents=True, exist_ok=True)
  facts, columns = token_columns.split(rows)
  paths = {path}
  if columns:
    form = token_columns.extension()
    array_path, content = path.removesuffix(FACTS) + form, token_columns.encode(columns, form)
    write_atomically(array_path, content)
    paths.add(array_path)
    marks = {ARRAYS: token_columns.mark(array_path, content)}
    facts = [row | marks for row in facts]
  write_atomically(path, "".join(map(_dumps, facts)))
  for file in rollout_files(workdir, arrays=True)[iteration]:
    if file not in paths and (rollout_part(file) == part or rollout_part(file)[1] != part[1]):
      _remove(file)
  return path


def prune_rollouts(workdir: str | os.PathLike, keep: int, last: int) -> None:
  """Removes the rollouts of all but the `keep` newest iterations up to `last`; later ones are of a
  start that was set back, and will be written again.
  """
  files = rollout_files(workdir, arrays=True)
  for iteration in sorted(number for number in files if number <= last)[:-keep]:
    for path in files[iteration]:
      _remove(path)


def _remove(path: str) -> None:
  with contextlib.suppress(FileNotFoundError):  # another process removes it, too
    path_of(path).unlink()


class _WholeFile(io.BytesIO):
  """The lines of a file in a bucket, where nothing is appended: each `flush` writes all of them."""

  def __init__(self, path: str):
    place = path_of(path)
    exists = place.exists()
    super().__init__(place.read_bytes() if exists else b"")
    self._path = path
    self.seek(0, io.SEEK_END)
    if not exists:
      self.flush()

  def flush(self) -> None:
    write_atomically(self._path, self.getvalue())


def _opened(path: str):
  return _WholeFile(path) if is_bucket(path) else _open_after_last_line(path)


def _open_after_last_line(path: str):
  file = open(path, "a+b")
  file.seek(0)
  content = file.read()
  end = content.rfind(b"\n") + 1
  if content[end:]:
    if _is_object(content[end:]):
      file.write(b"\n")
      file.flush()
      logger.warning("%s: the last line lacked its line break and was completed", path)
    else:
      file.truncate(end)
      logger.warning("%s: the last line was torn and was dropped: %r", path, content[end:][:60])
  return file


def _is_object(line: bytes) -> bool:
  """Returns whether a line without its line break is a JSON object all the same."""
  try:
    return isinstance(json.loads(line), dict)
  except ValueError:
    return False


def _line(iteration: int, names: Iterable[str], numbers: np.ndarray) -> str:
  """Returns the line of an iteration's metrics, by name and value."""
  return _dumps({"iteration": int(iteration)} | dict(zip(names, plain(numbers), strict=True)))


def _dumps(record: dict[str, Any]) -> str:
  return json.dumps(record, ensure_ascii=False, allow_nan=False, default=_rounded) + "\n"


def _rounded(array: np.ndarray) -> Any:
  return plain(array, DIGITS)


def plain(array: np.ndarray, digits: int | None = None) -> Any:
  """Returns an array as nested lists for strict JSON: "nan", "inf" and "-inf" in place of floats
  that are not finite.

  Other floats are rounded to `digits` significant digits; None keeps them.
  """
  array = np.asarray(array)
  if not np.issubdtype(array.dtype, np.floating):
    return array.tolist()
  array = array.astype(np.float64)
  if digits is not None:
    array = np.char.mod(f"%.{digits}g", array).astype(np.float64)
  finite = np.isfinite(array)
  if finite.all():
    return array.tolist()
  return np.where(finite, array.astype(object), array.astype(str).astype(object)).tolist()
