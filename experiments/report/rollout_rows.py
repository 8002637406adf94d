"""Reads the completions of an iteration: facts, and the arrays beside them (the inverse of
reporting/token_columns.py).
"""

import io
import os
import zipfile
import zlib
from typing import Any

import numpy as np

from jaxrl_llm.reporting import token_columns
from jaxrl_llm.reporting.reader import ARRAYS, COPY, RunError, read_lines, read_text
from jaxrl_llm.reporting.token_columns import PARQUET, Flat
from jaxrl_llm.store.files import FACTS
from jaxrl_llm.store.folders import path_of

# Of earlier versions, which wrote these columns as lists among the facts.
LISTS = {"tokens": np.int32, "mask": bool, "behavior_log_probs": np.float32,
         "anchor_log_probs": np.float32, "turn_id": np.int32}


def read_rollouts(path: str) -> list[dict[str, Any]]:
  """Returns the rows of a file of rollouts, with the arrays of the file next to it.

  Raises:
    RunError: one of the two is missing or damaged, or they do not belong together.
  """
  if not read_text(path).endswith("\n"):
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
                  for name, dtype in LISTS.items() if row.get(name) is not None}
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
    return decode(content, form)
  except OSError as error:
    fault = error.strerror or error
    raise RunError(f"{array_path}: {fault}, but {path} names it. {COPY}") from error
  except ValueError as error:
    raise RunError(f"{array_path}: {error}. {COPY}") from error


def decode(content: bytes, form: str) -> dict[str, list[np.ndarray]]:
  """Returns the columns in the content of a file.

  Raises:
    ValueError: it is damaged, or pyarrow is not installed.
  """
  columns = {}
  for name, (values, lengths) in (_read_parquet if form == PARQUET else _read_npz)(content).items():
    if lengths.sum() != len(values) or (lengths < 0).any():
      raise ValueError(f"column {name} has {len(values)} entries for lengths of {lengths.sum()}")
    columns[name] = np.split(values, np.cumsum(lengths)[:-1])
  return columns


def _read_parquet(content: bytes) -> Flat:
  try:
    import pyarrow as pa
    from pyarrow import parquet
  except ImportError as error:
    raise ValueError(f"reading it needs pyarrow ({error}). Fix: pip install pyarrow") from error
  try:
    table = parquet.read_table(pa.BufferReader(content)).combine_chunks()
    lists = {name: table[name].combine_chunks() for name in table.column_names}
    return {name: (entries.flatten().to_numpy(zero_copy_only=False),
                   entries.value_lengths().to_numpy(zero_copy_only=False))
            for name, entries in lists.items()}
  except (pa.ArrowException, OSError, IndexError, AttributeError) as error:
    raise ValueError(" ".join(str(error).split())[:200]) from error


def _read_npz(content: bytes) -> Flat:
  try:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
      members = {name: file[name] for name in file.files}
    lengths = {name.removesuffix(".lengths"): array for name, array in members.items()
               if name.endswith(".lengths")}
    return {name: (_from_planes(members, name, int(count.sum())), count)
            for name, count in lengths.items()}
  except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, StopIteration) as error:
    raise ValueError(" ".join(str(error).split())[:200] or "an array is missing") from error


def _from_planes(members: dict[str, np.ndarray], column: str, count: int) -> np.ndarray:
  """Returns the values of a column from the planes of its bytes."""
  dtype = next(name.split(".")[1] for name in members if name.startswith(f"{column}.")
               and not name.endswith(".lengths"))
  if dtype == "bool":
    return np.unpackbits(members[f"{column}.bool.0"], count=count).astype(bool)
  planes = [members[f"{column}.{dtype}.{place}"] for place in range(np.dtype(dtype).itemsize)]
  return np.ascontiguousarray(np.stack(planes, 1)).view(dtype).reshape(-1)
