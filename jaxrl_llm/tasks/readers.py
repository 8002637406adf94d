"""Rows of files: jsonl, json, csv, parquet, also gzipped, folders of shards, and hub names."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import installing
from jaxrl_llm.tasks import delimited, splits

JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLES = (".csv", ".tsv")
KINDS = (*JSON_LINES, *TABLES, ".parquet")
ALLOWED = f"{', '.join(KINDS)}, or those but parquet with .gz added"

# JSON files that describe a data set and hold no rows.
DESCRIPTIONS = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json",
                          "state.json", "croissant.json"})
_SPACE = re.compile(r"\s*")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # how surrogateescape decodes other bytes
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)

# A row, or its error, so that the caller may continue with the next.
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
    ConfigError: nothing exists there, an unknown kind of file, or a file that cannot be read on.
  """
  file = Path(path)
  if not path:
    raise ConfigError(
        f"{key} is empty. Fix: {key}=<a file ({', '.join(KINDS)}), a folder, or a hub name>.")
  if file.exists():
    splits.warn_of_file(key, file, split)
  if file.is_dir():
    return _folder(key, file, split)
  if file.is_file():
    return _file(key, file)
  like_a_file = _kind(file) in KINDS
  if like_a_file or path.startswith((".", "/", "~")) or path.count("/") > 1:
    raise ConfigError(
        f"{key} = {path!r}: no such file or folder (from {Path.cwd()}). Fix: an existing path.")
  return _hub(key, path, split)


def files_of(key: str, path: str, split: str) -> list[Path]:
  """Returns the files that `read_rows` reads with these arguments; none for a hub name.

  Raises:
    ConfigError: the folder does not say which files make up the split.
  """
  place = Path(path)
  if not path or not place.exists():
    return []
  if place.is_file():
    return [place]
  if _is_saved(place):
    of_split = place / split if (place / split).is_dir() else place
    return sorted(file for file in of_split.rglob("*")
                  if file.is_file() and not file.name.startswith("cache-"))  # made by `datasets`
  readable = _readable(place)
  return splits.choose(key, place, readable, split) if readable else []


def _kind(file: Path) -> str:
  """Returns the ending of a file in lower case, without .gz."""
  ending = file.suffix.lower()
  return Path(file.stem).suffix.lower() if ending == ".gz" else ending


def _file(key: str, file: Path) -> Iterator[Row]:
  kind = _kind(file)
  if kind in JSON_LINES:
    return _json(file)
  if kind in TABLES:
    return _table(file, "\t" if kind == ".tsv" else ",")
  if file.suffix.lower() == ".parquet":
    return _parquet(file)
  raise ConfigError(f"{key} = {str(file)!r}: files end in {ALLOWED}. Fix: convert the file.")


def _open(file: Path):
  return gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb")


def _json(file: Path) -> Iterator[Row]:
  """Reads one object per line, or one array of objects."""
  try:
    with _open(file) as stream:
      begin = stream.read(4096).decode("utf-8-sig", errors="ignore").lstrip()[:1]
    yield from _json_array(file) if begin == "[" else _json_lines(file)
  except (EOFError, OSError) as error:
    raise _unreadable(file, error) from error


def _json_array(file: Path) -> Iterator[Row]:
  """Reads the items one by one, so that an unreadable item does not affect others."""
  with _open(file) as stream:
    text = stream.read().decode("utf-8-sig", errors="surrogateescape")
  place, number, line, line_end = text.index("[") + 1, 0, 1, 0
  place = _SPACE.match(text, place).end()
  while text[place:place + 1] != "]":
    number, line, line_end = number + 1, line + text.count("\n", line_end, place), place
    location = f"{file}, line {line} (item {number})"
    row, end = _array_entry(location, text, place)
    yield row
    place = _SPACE.match(text, end).end()
    if text[place:place + 1] == ",":
      place = _SPACE.match(text, place + 1).end()
    elif text[place:place + 1] != "]":
      raise _json_error(location, "no comma or ] follows it")
  tail_start = _SPACE.match(text, place + 1).end()
  if tail_start < len(text):
    line += text.count("\n", line_end, tail_start)
    raise _json_error(f"{file}, line {line}", "more text after the array")


def _array_entry(location: str, text: str, begin: int) -> tuple[Row, int]:
  """Returns an item of an array and where it ends.

  Raises:
    ConfigError: nothing tells where it ends.
  """
  try:
    value, end = json.JSONDecoder().raw_decode(text, begin)
    if _NOT_UTF8.search(text, begin, end):
      return (location, ConfigError(f"{location}: not UTF-8. Fix: save the file in UTF-8.")), end
    return _object(location, value), end
  except (ValueError, RecursionError) as error:
    end = _entry_end(text, begin)
    if end is None:
      raise _json_error(location, _fault(error)) from error
    return (location, _json_error(location, _fault(error))), end


def _entry_end(text: str, begin: int) -> int | None:
  """Returns where the brackets that open at `begin` are closed; None if they are not."""
  depth = 0
  for match in _BRACKETS.finditer(text, begin):
    if match[0][0] != '"':
      depth += 1 if match[0] in "[{" else -1
      if depth <= 0:
        return match.end() if depth == 0 else None
  return None


def _json_error(location: str, fault: str) -> ConfigError:
  return ConfigError(f"{location}: malformed JSON: {fault}. Fix: one array of objects, or one JSON "
                     "object per line.")


def _fault(error: ValueError | RecursionError) -> str:
  """Returns what is wrong with a line or an item, with the column where that is known."""
  if isinstance(error, RecursionError):
    return "brackets nested too deeply"
  if isinstance(error, json.JSONDecodeError):
    return f"{error.msg} (column {error.colno})"
  return str(error)


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
      except (ValueError, RecursionError) as error:
        yield place, ConfigError(
            f"{place}: malformed JSON: {_fault(error)}. Fix: one JSON object per line.")


def _object(place: str, row) -> Row:
  if isinstance(row, dict):
    return place, row
  return place, ConfigError(f"{place}: a JSON {type(row).__name__} instead of an object. "
                            "Fix: one JSON object per line, or an array of them.")


def _table(file: Path, delimiter: str) -> Iterator[Row]:
  """Reads a table whose first line names the columns; values are texts."""
  try:
    with _open(file) as stream:
      names: list[str] | None = None
      for number, record in delimited.records(stream, delimiter):
        place = f"{file}, line {number}"
        if names is None:
          names = _column_names(place, record)
        elif isinstance(record, str):
          yield place, ConfigError(f"{place}: {record}")
        elif len(record) != len(names):
          yield place, ConfigError(
              f"{place}: {len(record)} columns, but {len(names)} columns were expected, as in the "
              "first line. Fix: the row; texts with commas or line breaks stand in quotes.")
        else:
          yield place, dict(zip(names, record, strict=True))
  except (EOFError, OSError) as error:
    raise _unreadable(file, error) from error


def _column_names(place: str, record: list[str] | str) -> list[str]:
  """Returns the names in the first line of a table.

  Raises:
    ConfigError: it cannot be read, or names a column twice.
  """
  if isinstance(record, str):
    raise ConfigError(f"{place}: {record}")
  twice = sorted({name for name in record if record.count(name) > 1})
  if twice:
    raise ConfigError(f"{place}: two columns are named {twice[0]!r}. Fix: a name for each.")
  return record


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
        try:
          rows = batch.to_pylist()
        except (ArrowException, ValueError):  # one row is at fault, not all of the batch
          rows = [_parquet_row(batch, i) for i in range(batch.num_rows)]
        for row in rows:
          number += 1
          place = f"{file}, row {number}"
          yield place, ConfigError(f"{place}: {row}") if isinstance(row, str) else row
  except (ArrowException, OSError, ValueError) as error:
    reason = " ".join(str(error).split()).rstrip(".")
    raise ConfigError(f"{file}, after row {number}: not a readable parquet file: {reason}. "
                      "Fix: a complete file.") from error


def _parquet_row(batch, index: int) -> dict | str:
  """Returns a row of a batch, or what is wrong with it."""
  out = {}
  for name in batch.schema.names:
    try:
      out[name] = batch.column(name)[index].as_py()
    except ValueError as error:  # text that is not UTF-8 included
      return f"column {name!r}: {error}. Fix: texts in UTF-8."
  return out


def _is_saved(folder: Path) -> bool:
  """Returns whether `datasets` may have written a folder by save_to_disk."""
  return any((folder / name).exists() for name in ("dataset_info.json", "dataset_dict.json"))


def _readable(folder: Path) -> list[Path]:
  """Returns the files of rows below a folder, sorted: neither hidden ones nor descriptions."""
  return sorted(file for file in folder.rglob("*")
                if _kind(file) in KINDS and file.is_file() and file.name not in DESCRIPTIONS
                and not any(part.startswith((".", "__")) for part in
                            file.relative_to(folder).parts))


def _folder(key: str, folder: Path, split: str) -> Iterator[Row]:
  files = [] if _is_saved(folder) else _readable(folder)
  if files:
    return _shards(key, splits.choose(key, folder, files, split))
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
          f"Fix: {splits.split_key(key)}=<one of them>.")
    loaded = loaded[split]
  return _numbered(str(folder), loaded)


def _shards(key: str, files: list[Path]) -> Iterator[Row]:
  for file in files:
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
        f"owner/dataset or owner/dataset:configuration and {splits.split_key(key)}.") from error
  return _numbered(name, loaded)


def _numbered(name: str, rows) -> Iterator[Row]:
  number = 0
  try:
    for row in rows:
      number += 1
      yield f"{name}, row {number}", row
  except Exception as error:  # whatever the decoders of a column raise
    raise ConfigError(f"{name}, row {number + 1}: not readable: {type(error).__name__}: {error}. "
                      "Fix: a complete data set.") from error


def _datasets(path: str):
  try:
    import datasets
  except ImportError as error:
    raise _missing("datasets", path) from error
  return datasets


def _missing(package: str, path: str) -> ConfigError:
  return ConfigError(
      f"{path}: reading it needs {package}. Fix: {installing('data')}, or a .jsonl file.")
