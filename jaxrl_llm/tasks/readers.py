"""Rows of files: jsonl, json, csv, parquet, also gzipped, folders of shards, and hub names."""

import csv
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

from jaxrl_llm.config import ConfigError

JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLES = (".csv", ".tsv")
KINDS = (*JSON_LINES, *TABLES, ".parquet")
ALLOWED = f"{', '.join(KINDS)}, or those but parquet with .gz behind"

# A row, or what is wrong with it, so that the caller may go on with the next.
Row = tuple[str, dict | ConfigError]


def read_rows(key: str, path: str, split: str) -> Iterator[Row]:
  """Returns an iterator over (place, row), in file order.

  A row that cannot be read is a ConfigError in place of a dict.

  Args:
    key: the configuration key that holds `path`.
    split: of a folder or hub name; files have none.

  Returns:
    `place` names file and line for error messages.

  Raises:
    ConfigError: nothing there, an unknown kind of file, or a file that cannot be read on.
  """
  file = Path(path)
  if not path:
    raise ConfigError(
        f"{key} is empty. Fix: {key}=<a file ({', '.join(KINDS)}), a folder, or a hub name>.")
  if file.is_dir():
    return _folder(key, file, split)
  if file.is_file():
    return _file(key, file)
  like_a_file = _kind(file) in KINDS
  if like_a_file or path.startswith((".", "/", "~")) or path.count("/") > 1:
    raise ConfigError(
        f"{key} = {path!r}: no such file or folder (from {Path.cwd()}). Fix: an existing path.")
  return _hub(key, path, split)


def _kind(file: Path) -> str:
  """Returns the ending of a file, without .gz."""
  return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


def _file(key: str, file: Path) -> Iterator[Row]:
  kind = _kind(file)
  if kind in JSON_LINES:
    return _json(file)
  if kind in TABLES:
    return _table(file, "\t" if kind == ".tsv" else ",")
  if file.suffix == ".parquet":
    return _parquet(file)
  raise ConfigError(f"{key} = {str(file)!r}: files end in {ALLOWED}. Fix: convert the file.")


def _open(file: Path):
  return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")


def _json(file: Path) -> Iterator[Row]:
  """Reads one object per line, or one array of objects."""
  try:
    with _open(file) as stream:
      begin = stream.read(4096).decode("utf-8-sig", errors="ignore").lstrip()[:1]
    yield from _json_array(file) if begin == "[" else _json_lines(file)
  except (EOFError, OSError) as error:
    raise _unreadable(file, error) from error


def _json_array(file: Path) -> Iterator[Row]:
  with _open(file) as stream:
    try:
      rows = json.loads(stream.read().decode("utf-8-sig"))
    except ValueError as error:
      raise ConfigError(f"{file}: malformed JSON: {error}. Fix: one array of objects, or one "
                        "object per line.") from error
  for number, row in enumerate(rows, 1):
    yield _object(f"{file}, item {number}", row)


def _json_lines(file: Path) -> Iterator[Row]:
  with _open(file) as stream:
    for number, line in enumerate(stream, 1):
      place = f"{file}, line {number}"
      try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
      except UnicodeDecodeError as error:
        yield place, ConfigError(f"{place}: not UTF-8 (byte {error.start + 1} of the line). "
                                 "Fix: save the file in UTF-8.")
        continue
      if not text.strip():
        continue
      try:
        yield _object(place, json.loads(text))
      except ValueError as error:
        yield place, ConfigError(
            f"{place}: malformed JSON: {error}. Fix: one JSON object per line.")


def _object(place: str, row) -> Row:
  if isinstance(row, dict):
    return place, row
  return place, ConfigError(f"{place}: a JSON {type(row).__name__} instead of an object. "
                            "Fix: one JSON object per line, or an array of them.")


def _table(file: Path, delimiter: str) -> Iterator[Row]:
  """Reads a table whose first line names the columns; values are texts."""
  try:
    with _open(file) as stream:
      lines = (line.decode("utf-8-sig" if number == 0 else "utf-8")
               for number, line in enumerate(stream))
      reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
      for row in reader:
        place = f"{file}, line {reader.line_num}"
        if None in row or None in row.values():
          yield place, ConfigError(
              f"{place}: {len(reader.fieldnames or ())} columns were expected, as in the first "
              "line. Fix: the row; texts with commas or line breaks stand in quotes.")
        else:
          yield place, row
  except (csv.Error, UnicodeDecodeError, EOFError, OSError) as error:
    raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> ConfigError:
  return ConfigError(f"{file}: not readable: {error}. Fix: a complete file in UTF-8.")


def _parquet(file: Path) -> Iterator[Row]:
  try:
    from pyarrow import ArrowException, parquet
  except ImportError as error:
    raise _missing("pyarrow", str(file)) from error
  number = 0
  try:
    with parquet.ParquetFile(file) as table:
      for batch in table.iter_batches():
        for row in batch.to_pylist():
          number += 1
          yield f"{file}, row {number}", row
  except (ArrowException, OSError, UnicodeDecodeError) as error:
    raise ConfigError(f"{file}, after row {number}: not a readable parquet file: {error}. "
                      "Fix: a complete file.") from error


def _folder(key: str, folder: Path, split: str) -> Iterator[Row]:
  saved = any((folder / name).exists() for name in ("dataset_info.json", "dataset_dict.json"))
  files = sorted(file for file in folder.rglob("[!.]*") if _kind(file) in KINDS)
  if files and not saved:
    return _shards(key, folder, files, split)
  datasets = _datasets(str(folder))
  try:
    loaded = datasets.load_from_disk(str(folder))
  except Exception as error:  # the library raises many kinds for a folder that is not its own
    raise ConfigError(
        f"{key} = {str(folder)!r}: not a folder written by `datasets` save_to_disk: {error}. "
        "Fix: the file inside it, or a folder made by save_to_disk.") from error
  if hasattr(loaded, "keys"):
    if split not in loaded:
      raise ConfigError(
          f"{key} = {str(folder)!r}: no split {split!r}; there are {', '.join(sorted(loaded))}. "
          f"Fix: {_split_key(key)}=<one of them>.")
    loaded = loaded[split]
  return _numbered(str(folder), loaded)


def _shards(key: str, folder: Path, files: list[Path], split: str) -> Iterator[Row]:
  """Reads the files of a split, train-00000-of-00002.parquet and so on; all, if none names one."""
  named = {file: _SPLIT.match(file.name) for file in files}
  chosen = [file for file in files if named[file] and named[file][1] == split]
  if not chosen and any(named.values()):
    there = sorted({match[1] for match in named.values() if match})
    raise ConfigError(f"{key} = {str(folder)!r}: no file of the split {split!r}; there are "
                      f"{', '.join(there)}. Fix: {_split_key(key)}=<one of them>.")
  for file in chosen or files:
    yield from _file(key, file)


def _hub(key: str, name: str, split: str) -> Iterator[Row]:
  datasets = _datasets(name)
  repository, _, config = name.partition(":")
  try:
    loaded = datasets.load_dataset(repository, config or None, split=split)
  except Exception as error:  # network, name, configuration and split errors alike
    raise ConfigError(
        f"{key} = {name!r}: no file or folder of this name, and the hub did not give it: "
        f"{type(error).__name__}: {error}. Fix: a local path; or, with a network, a hub name "
        f"owner/dataset or owner/dataset:configuration and {_split_key(key)}.") from error
  return _numbered(name, loaded)


def _numbered(name: str, rows) -> Iterator[Row]:
  for number, row in enumerate(rows, 1):
    yield f"{name}, row {number}", row


def _split_key(key: str) -> str:
  return key.replace("heldout_path", "heldout_split").replace(".path", ".split")


def _datasets(path: str):
  try:
    import datasets
  except ImportError as error:
    raise _missing("datasets", path) from error
  return datasets


def _missing(package: str, path: str) -> ConfigError:
  return ConfigError(
      f"{path}: reading it needs {package}. Fix: pip install -e '.[data]', or a .jsonl file.")


_SPLIT = re.compile(r"(train|test|validation|valid|val|dev)(?=[-_.0-9])")
