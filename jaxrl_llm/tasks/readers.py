"""Rows of files: jsonl, parquet, folders of Hugging Face `datasets`, and hub names."""

import json
from collections.abc import Iterator
from pathlib import Path

from jaxrl_llm.config import ConfigError

JSON_LINES = (".jsonl", ".ndjson", ".json")


def read_rows(key: str, path: str, split: str) -> Iterator[tuple[str, dict]]:
  """Returns an iterator over (place, row), in file order.

  Args:
    key: the configuration key that holds `path`.
    split: of a `datasets` folder or hub name; files have none.

  Returns:
    `place` names file and line for error messages.

  Raises:
    ConfigError: nothing there, an unknown kind of file, or a row that is not a JSON object in
      UTF-8.
  """
  file = Path(path)
  if not path:
    raise ConfigError(
        f"{key} is empty. "
        f"Fix: {key}=<a .jsonl or .parquet file, a folder of `datasets`, or a hub name>.")
  if file.is_dir():
    return _folder(key, file, split)
  if file.is_file():
    if file.suffix in JSON_LINES:
      return _json_lines(file)
    if file.suffix == ".parquet":
      return _parquet(file)
    raise ConfigError(
        f"{key} = {path!r}: files end in {', '.join(JSON_LINES)} or .parquet. "
        "Fix: convert the file.")
  like_a_file = file.suffix in (*JSON_LINES, ".parquet")
  if like_a_file or path.startswith((".", "/", "~")) or path.count("/") > 1:
    raise ConfigError(
        f"{key} = {path!r}: no such file or folder (from {Path.cwd()}). Fix: an existing path.")
  return _hub(key, path, split)


def _json_lines(file: Path) -> Iterator[tuple[str, dict]]:
  with file.open("rb") as stream:
    for number, line in enumerate(stream, 1):
      place = f"{file}, line {number}"
      try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
      except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: not UTF-8 (byte {error.start + 1} of the line). "
                          "Fix: save the file in UTF-8.") from error
      if not text.strip():
        continue
      try:
        row = json.loads(text)
      except ValueError as error:
        raise ConfigError(
            f"{place}: malformed JSON: {error}. Fix: one JSON object per line.") from error
      if not isinstance(row, dict):
        raise ConfigError(f"{place}: a JSON {type(row).__name__} instead of an object. "
                          "Fix: one JSON object per line.")
      yield place, row


def _parquet(file: Path) -> Iterator[tuple[str, dict]]:
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


def _folder(key: str, folder: Path, split: str) -> Iterator[tuple[str, dict]]:
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


def _hub(key: str, name: str, split: str) -> Iterator[tuple[str, dict]]:
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


def _numbered(name: str, rows) -> Iterator[tuple[str, dict]]:
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
