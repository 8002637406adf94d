"""Rows of files: jsonl, json, csv, tsv, also gzipped, parquet (pyarrow), folders of such files, and
folders and hub names of `datasets`.
"""

import codecs
import csv
import gzip
import io
import json
import logging
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from jaxrl_llm.fields import ConfigError, installing

JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLES = (".csv", ".tsv")
KINDS = (*JSON_LINES, *TABLES, ".parquet")
HUB_SECONDS = 15.0  # in which the hub must answer
# Words of a path that name a split, as hubs write them.
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing", "eval", "evaluation", "heldout", "holdout"),
}
SPLIT_OF = {word: split for split, words in SPLITS.items() for word in words}
# JSON files that describe a data set and hold no rows.
DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json",
                "croissant.json")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # how surrogateescape decodes other bytes
logger = logging.getLogger(__name__)

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
  if not path:
    raise ConfigError(
        f"{key} is empty. Fix: {key}=<a file ({', '.join(KINDS)}), a folder, or a hub name>.")
  if "://" in path:
    raise ConfigError(f"{key} = {path!r}: addresses are not read. Fix: a file or folder, to which "
                      "it was copied, or the name of a data set of the hub, owner/name.")
  place = Path(path).expanduser()
  if place.is_dir() and _is_saved(place):
    return _saved(key, place, split)
  if place.exists():
    return (row for file in files_of(key, path, split) for row in _file(key, file))
  if path.startswith((".", "/", "~")) or path.count("/") > 1 or _kind(place) in KINDS:
    raise ConfigError(
        f"{key} = {path!r}: no such file or folder (from {Path.cwd()}). Fix: an existing path.")
  return _hub(key, path, split)


def files_of(key: str, path: str, split: str) -> list[Path]:
  """Returns the files that `read_rows` reads with these arguments; none for a hub name.

  In a folder, a split is a word of a file's path: train-00000-of-00002.parquet, train/0.jsonl,
  math_train.jsonl. Where no path names a split, all files are taken, and the log says so.

  Raises:
    ConfigError: no file of the split, or the files of several configurations (main/, socratic/).
  """
  place = Path(path).expanduser()
  if not path or not place.exists():
    return []
  if place.is_file():
    return [place]
  if _is_saved(place):
    of_split = place / split if (place / split).is_dir() else place
    return sorted(file for file in of_split.rglob("*")
                  if file.is_file() and not file.name.startswith("cache-"))  # made by `datasets`
  inside = {file: file.relative_to(place) for file in sorted(place.rglob("*"))
            if _kind(file) in KINDS and file.is_file() and file.name not in DESCRIPTIONS}
  inside = {file: name for file, name in inside.items()
            if not any(part.startswith((".", "__")) for part in name.parts)}
  known, named = SPLIT_OF.get(split.lower()), {file: _splits(inside[file]) for file in inside}
  files = [file for file, name in inside.items()
           if (known in named[file] if known else split.lower() in str(name).lower())]
  others = sorted(set().union(*named.values()))
  if not inside or (not files and others):
    raise ConfigError(f"{key} = {path!r}: no file of the split {split!r}; there are "
                      f"{', '.join(others) or 'none'} ({', '.join(KINDS)}). Fix: another "
                      f"{key.replace('heldout_path', 'heldout_split').replace('.path', '.split')}, "
                      f"or {key}=<a file>.")
  if not files:
    logger.warning("%s = %s: no path there names a split, so that all of its %d files are read",
                   key, path, len(inside))
  files = files or [*inside]
  sets = {Path(*(part for part in inside[file].parent.parts
                 if not {"data", "default", *SPLIT_OF} & {*_words(part)})) for file in files}
  if len(sets) > 1:
    raise ConfigError(f"{key} = {path!r}: files of {len(sets)} sets would be mixed: "
                      f"{', '.join(sorted(map(str, sets)))}. Fix: {key}=<one of these folders>.")
  return files


def _splits(path: Path) -> set[str]:
  """Returns the splits that a path names, by the last of its parts that names one."""
  for part in reversed(path.with_suffix("").parts):
    if splits := {SPLIT_OF[word] for word in _words(part) if word in SPLIT_OF}:
      return splits
  return set()


def _words(part: str) -> list[str]:
  """Returns the words of a part of a path, also of MathTrain, in lower case."""
  return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", part)]


def _kind(file: Path) -> str:
  """Returns the ending of a file in lower case, without .gz."""
  ending = file.suffix.lower()
  return Path(file.stem).suffix.lower() if ending == ".gz" else ending


def _file(key: str, file: Path) -> Iterator[Row]:
  kind = file.suffix.lower() if file.suffix.lower() == ".parquet" else _kind(file)
  if kind not in KINDS:
    raise ConfigError(f"{key} = {str(file)!r}: files end in {', '.join(KINDS)}, or those but "
                      "parquet with .gz added. Fix: convert the file.")
  number = 0
  try:
    if kind == ".parquet":
      for number, row in enumerate(_parquet(file), 1):
        yield f"{file}, row {number}", row
      return
    with gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb") as stream:
      yield from _json(file, stream) if kind in JSON_LINES else _table(file, stream, kind)
  except (EOFError, OSError, ValueError, zlib.error) as error:  # of pyarrow, too
    raise ConfigError(f"{file}{f', after row {number}' if number else ''}: not readable: "
                      f"{' '.join(str(error).split())}. Fix: a complete file.") from error


def _json(file: Path, stream) -> Iterator[Row]:
  """Reads one object per line, or one array of objects."""
  is_array = stream.peek(4096).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
  text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="\n")
  if is_array:
    yield from _array(file, text.read())
    return
  for number, line in enumerate(text, 1):
    if line.strip():
      yield f"{file}, line {number}", _parsed(f"{file}, line {number}", line)


def _array(file: Path, text: str) -> Iterator[Row]:
  """Reads an array; an item that is no object is a bad row, text that is no JSON ends the file."""
  try:
    items = json.loads(text)
  except (ValueError, RecursionError) as error:
    line = getattr(error, "lineno", 1)
    raise ConfigError(f"{file}, line {line}: malformed JSON: {_fault(error)}. Fix: one array of "
                      "objects, or one JSON object per line.") from error
  for number, item in enumerate(items, 1):
    place = f"{file}, item {number}"
    yield place, item if isinstance(item, dict) else ConfigError(
        f"{place}: a JSON {type(item).__name__} instead of an object. Fix: an array of objects.")


def _parsed(place: str, line: str) -> dict | ConfigError:
  """Returns the object of a line."""
  if byte := _NOT_UTF8.search(line):
    return ConfigError(f"{place}: not UTF-8 (character {byte.start() + 1} of the line). Fix: save "
                       "the file in UTF-8.")
  try:
    row = json.loads(line)
  except (ValueError, RecursionError) as error:
    return ConfigError(f"{place}: malformed JSON: {_fault(error)}. Fix: one JSON object per line.")
  return row if isinstance(row, dict) else ConfigError(
      f"{place}: a JSON {type(row).__name__} instead of an object. Fix: one JSON object per line, "
      "or an array of them.")


def _fault(error: ValueError | RecursionError) -> str:
  """Returns what is wrong with JSON, with the column where that is known."""
  if isinstance(error, RecursionError):
    return "brackets nested too deeply"
  return f"{error.msg} (column {error.colno})" if isinstance(
      error, json.JSONDecodeError) else str(error)


def _table(file: Path, stream, kind: str) -> Iterator[Row]:
  """Reads a table whose first line names the columns; values are texts, of any length."""
  csv.field_size_limit(sys.maxsize)
  text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
  reader = csv.reader(text, delimiter="\t" if kind == ".tsv" else ",", strict=True)
  names: list[str] = []
  while True:
    place = f"{file}, line {reader.line_num + 1}"
    try:
      record = next(reader, None)
    except csv.Error as error:
      if "unexpected end" in str(error):  # of all lines from here on
        raise ConfigError(f"{place}: a quote that never closes. Fix: the row; a quote inside a "
                          "text is written twice.") from error
      yield place, ConfigError(f"{place}: malformed: {error}. Fix: the row; a quote inside a text "
                               "is written twice.")
      continue
    if record is None:
      return
    if any(_NOT_UTF8.search(text) for text in record):
      yield place, ConfigError(f"{place}: not UTF-8. Fix: save the file in UTF-8.")
    elif not names:
      names = record
      if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{place}: two columns are named {twice[0]!r}. Fix: a name for each.")
    elif record and len(record) != len(names):
      yield place, ConfigError(
          f"{place}: {len(record)} columns, but {len(names)} columns were expected, as in the "
          "first line. Fix: the row; texts with commas or line breaks stand in quotes.")
    elif record:
      yield place, dict(zip(names, record, strict=True))


def _parquet(file: Path) -> Iterator[dict]:
  try:
    from pyarrow import parquet
  except ImportError as error:
    raise _missing("pyarrow", file) from error
  with parquet.ParquetFile(file) as table:
    for batch in table.iter_batches():
      yield from batch.to_pylist()


def _is_saved(folder: Path) -> bool:
  """Returns whether `datasets` may have written a folder by save_to_disk."""
  return any((folder / name).exists() for name in ("dataset_info.json", "dataset_dict.json"))


def _saved(key: str, folder: Path, split: str) -> Iterator[Row]:
  try:
    import datasets

    data_set = datasets.load_from_disk(str(folder))
    if hasattr(data_set, "keys") and split not in data_set:
      raise KeyError(f"there are {', '.join(data_set)}")
    data_set = data_set[split] if hasattr(data_set, "keys") else data_set
  except ImportError as error:
    raise _missing("datasets", folder) from error
  except Exception as error:  # the library raises many kinds for a folder that is not its own
    raise ConfigError(f"{key} = {str(folder)!r}: `datasets` cannot read the split {split!r} of it: "
                      f"{_reason(error)}. Fix: the file inside it, another split, or a folder made "
                      "by save_to_disk.") from error
  return _numbered(str(folder), data_set)


def _hub(key: str, name: str, split: str) -> Iterator[Row]:
  """Reads a data set of the hub. Where the hub does not answer in time, only its local copy is
  asked for, because the library would try again for minutes.
  """
  try:
    import datasets
    import huggingface_hub
  except ImportError as error:
    raise _missing("datasets", Path(name)) from error
  repository, _, config = name.partition(":")
  offline = (datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE)
  cause: Exception | None = None
  try:
    huggingface_hub.HfApi().dataset_info(repository, timeout=HUB_SECONDS)
  except Exception as error:  # network, proxies, names and access alike
    cause = error
    datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
  try:
    data_set = datasets.load_dataset(repository, config or None, split=split)
  except Exception as error:
    raise ConfigError(
        f"{key} = {name!r}: no file or folder of this name, and the hub did not give it: "
        f"{_reason(cause or error)}. Fix: a local path; or, with a network, a hub name "
        "owner/dataset or owner/dataset:configuration, and its split.") from error
  finally:
    datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = offline
  return _numbered(name, data_set)


def _numbered(name: str, rows) -> Iterator[Row]:
  number = 0
  try:
    for number, row in enumerate(rows, 1):
      yield f"{name}, row {number}", row
  except Exception as error:  # whatever the decoders of a column raise
    raise ConfigError(f"{name}, row {number + 1}: not readable: {_reason(error)}. Fix: a complete "
                      "data set.") from error


def _reason(error: Exception) -> str:
  return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _missing(package: str, path: Path) -> ConfigError:
  return ConfigError(f"{path}: reading it needs {package}. Fix: {installing('data')}, or a .jsonl "
                     "file.")
