"""Per-token columns of completions as the content of a file of arrays, next to the file of facts.

Parquet with zstd where pyarrow is installed, else npz. Both hold the arrays of a column one after
the other, and their lengths; numbers are exact to the bit, and equal columns give equal bytes.
Readers open either with their usual tools: `pandas.read_parquet` gives lists by completion; the
members of an npz are described at `_npz`.
"""

import io
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PARQUET, NPZ = ".parquet", ".npz"
Flat = dict[str, tuple[np.ndarray, np.ndarray]]  # values [sum of lengths] and lengths [B] by column


def split(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, list]]:
  """Returns (records without their columns, the arrays of all records by column).

  A column is an entry that is a numpy array of one axis in every record; others stay facts.
  """
  names = [name for name in (rows[0] if rows else {})
           if all(isinstance(row.get(name), np.ndarray) and row[name].ndim == 1 for row in rows)]
  facts = [{name: entry for name, entry in row.items() if name not in names} for row in rows]
  return facts, {name: [row[name] for row in rows] for name in names}


def extension() -> str:
  """Returns the form that is written: PARQUET where pyarrow is installed, else NPZ."""
  try:
    import pyarrow.parquet  # noqa: F401  here: an optional package, of half a second
  except ImportError:
    return NPZ
  return PARQUET


def encode(columns: Mapping[str, Sequence[np.ndarray]], form: str) -> bytes:
  """Returns columns, each of B arrays [length], as the content of a file of that form."""
  flat = {name: (np.concatenate(arrays), np.array([len(a) for a in arrays], np.int32))
          for name, arrays in columns.items()}
  return _parquet(flat) if form == PARQUET else _npz(flat)


def mark(path: str, content: bytes) -> str:
  """Returns the entry that names a file of arrays: its name and the CRC-32 of its content."""
  return f"{os.path.basename(path)} {zlib.crc32(content):08x}"


def _parquet(flat: Flat) -> bytes:
  import pyarrow as pa
  from pyarrow import parquet

  columns = {}
  for name, (values, lengths) in flat.items():
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns[name] = pa.ListArray.from_arrays(_arrow(offsets), _arrow(values))
  # Bytes of the same place of a number lie together: upper bytes of ids and exponents repeat.
  encodings = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name, (values, _) in flat.items()
               if values.dtype.itemsize == 4}
  out = io.BytesIO()
  parquet.write_table(pa.table(columns), out, compression="zstd", use_dictionary=False,
                      column_encoding=encodings or None, write_statistics=False)
  return out.getvalue()


def _arrow(values: np.ndarray):
  """Returns a numpy array as an Arrow one. `pyarrow.array` does that too, but imports pandas."""
  import pyarrow as pa

  bits = values.dtype == np.bool_  # Arrow has one bit for each
  data = np.packbits(values, bitorder="little") if bits else np.ascontiguousarray(values)
  return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values),
                               [None, pa.py_buffer(data)])


def _npz(flat: Flat) -> bytes:
  """Writes the members `column.lengths` and `column.dtype.place`: as in `_parquet`, the bytes of
  one place of all numbers lie together, the lowest first. Bytes that repeat, of ids and exponents,
  are deflated; each bool is one bit.
  """
  out = io.BytesIO()
  with zipfile.ZipFile(out, "w") as file:
    for name, (values, lengths) in flat.items():
      _add(file, f"{name}.lengths", lengths, deflated=True)
      if values.dtype == bool:
        _add(file, f"{name}.bool.0", np.packbits(values), deflated=True)
        continue
      planes = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.dtype.itemsize).T
      for place, plane in enumerate(planes):
        repeats = values.dtype.kind in "iu" or place == len(planes) - 1
        _add(file, f"{name}.{values.dtype.name}.{place}", np.ascontiguousarray(plane), repeats)
  return out.getvalue()


def _add(file: zipfile.ZipFile, name: str, array: np.ndarray, deflated: bool) -> None:
  content = io.BytesIO()
  np.lib.format.write_array(content, array, allow_pickle=False)
  member = zipfile.ZipInfo(f"{name}.npy")  # without the time of day: equal runs have equal files
  file.writestr(member, content.getvalue(),
                zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED, compresslevel=1)
