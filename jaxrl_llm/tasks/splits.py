"""The files of a folder that make up a split, by the words of their paths."""

import collections
import logging
import os
import re
from pathlib import Path

from jaxrl_llm.fields import ConfigError

# Words that name a split, as hubs write them.
NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing", "eval", "evaluation", "heldout", "holdout"),
}
SPLIT_OF = {word: split for split, words in NAMES.items() for word in words}
# Words that do not tell one set of rows from another.
NUMBERING = frozenset({"of", "part", "shard", "chunk", "data", "default", "split", "snappy"})
SHOWN = 4  # files or folders that a message names

logger = logging.getLogger(__name__)


def choose(key: str, folder: Path, files: list[Path], split: str) -> list[Path]:
  """Returns the files of a split, in order.

  A split is a word of a file's path below the folder: train-00000-of-00002.parquet, train/0.jsonl,
  math_train.jsonl. Where no path names a split, all files are taken, and the log says so. Files are
  refused where it is not clear which are meant: a path with two splits, several configurations
  (main/ and socratic/, math_train and physics_train), the same name in two formats.

  Args:
    key: the configuration key that holds `folder`, for messages.
    files: all that could be read, at least one.
    split: any of `NAMES`, or words that are adjacent in a name, such as test_hard.

  Raises:
    ConfigError: no file of the split, or more than one reading of the folder.
  """
  inside = {file: file.relative_to(folder) for file in files}
  splits_of = {file: _splits(path) for file, path in inside.items()}
  split_name = SPLIT_OF.get(split.lower())
  if split_name is None:
    split_files = [file for file, path in inside.items() if _has_words(path, split)]
  else:
    split_files = [file for file in files if split_name in splits_of[file]]
    _refuse_two_splits(key, folder, {inside[file]: splits_of[file] for file in split_files})
  if not split_files and any(splits_of.values()):
    alternative = f"{split_key(key)}=<one of them>, or " if split_key(key) != key else ""
    raise ConfigError(f"{key} = {str(folder)!r}: no file of the split {split!r}; there are "
                      f"{', '.join(_split_words(inside.values()))}. "
                      f"Fix: {alternative}{key}=<a file>.")
  by_name = bool(split_files)
  split_files = split_files or files
  _refuse_two_formats(key, folder, [inside[file] for file in split_files])
  _refuse_two_sets(key, folder, split_files, by_name)
  unnamed = [f for f in files if by_name and not splits_of[f] and f not in split_files]
  _log(key, folder, split_files, unnamed, by_name)
  return split_files


def warn_of_file(key: str, file: Path, split: str) -> None:
  """Says where a file or folder that is named itself is called after another split than is asked:
  training rows from test.jsonl or test/, or held-out ones from train.jsonl.
  """
  name_splits, folder = frozenset(), file.name.lower()
  if not file.is_dir():
    name_splits, folder = _splits(Path(file.name)), file.parent.name.lower()
  if not name_splits and folder in SPLIT_OF:
    name_splits = frozenset({SPLIT_OF[folder]})
  split_name = SPLIT_OF.get(split.lower())
  if split_name and name_splits and ("train" in name_splits) != (split_name == "train"):
    logger.warning("%s = %s: the name says %s, and its rows are read as %s, because it is named "
                   "itself", key, file, " and ".join(sorted(name_splits)), split_name)


def split_key(key: str) -> str:
  """Returns the key of the split that belongs to the key of a path."""
  return key.replace("heldout_path", "heldout_split").replace(".path", ".split")


def _words(name: str) -> list[str]:
  """Returns the words and numbers of a name in lower case."""
  return [word for words in _parts(name) for word in words]


def _parts(name: str) -> list[list[str]]:
  """Returns the words and numbers of each part of a name between - _ . and the like."""
  return [[piece.lower() for piece in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", part)]
          for part in re.split(r"[^A-Za-z0-9]+", name) if part]


def _splits(path: Path) -> frozenset[str]:
  """Returns the splits that a path names: none, one, or several where its parts disagree.

  A part with several, such as train_test_split, counts only where no other part names one.
  """
  parts = [frozenset(SPLIT_OF[word] for word in _words(part) if word in SPLIT_OF)
           for part in _stems(path)]
  single = frozenset().union(*(part for part in parts if len(part) == 1))
  return single or frozenset().union(*parts)


def _stems(path: Path) -> tuple[str, ...]:
  """Returns the parts of a path, the last without its endings."""
  return (*path.parts[:-1], path.name[:-len(_ending(path)) or None])


def _ending(path: Path) -> str:
  """Returns the ending of a file's name, with the one before .gz."""
  return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:])


def _has_words(path: Path, split: str) -> bool:
  split_words = _words(split)
  return any(words[i:i + len(split_words)] == split_words
             for words in map(_words, _stems(path)) for i in range(len(words)))


def _split_words(paths) -> list[str]:
  """Returns the words for splits as the paths write them, sorted."""
  return sorted({word for path in paths for part in _stems(path) for word in _words(part)
                 if word in SPLIT_OF})


def _refuse_two_splits(key: str, folder: Path, splits_by_path: dict[Path, frozenset[str]]) -> None:
  torn = [path for path, splits in splits_by_path.items() if len(splits) > 1]
  if torn:
    raise ConfigError(
        f"{key} = {str(folder)!r}: {_path_list(torn)} names the splits "
        f"{' and '.join(sorted(splits_by_path[torn[0]]))}. "
        f"Fix: {key}=<the file or folder that is meant>.")


def _refuse_two_formats(key: str, folder: Path, relative_paths: list[Path]) -> None:
  """Refuses train.csv next to train.jsonl: each row would be there twice."""
  same = collections.defaultdict(list)
  for path in relative_paths:
    same[_stems(path)].append(path)
  twins = next((paths for paths in same.values() if len(paths) > 1), None)
  if twins:
    raise ConfigError(
        f"{key} = {str(folder)!r}: {_path_list(twins)} have the same name in two formats, so that "
        f"each row may be there twice. Fix: {key}={folder / twins[0]}.")


def _refuse_two_sets(key: str, folder: Path, split_files: list[Path], by_name: bool) -> None:
  """Refuses files of several sets: whose paths differ in more than numbers and the split.

  Where no path names a split, only folders distinguish sets: files a.jsonl and b.jsonl may be
  parts.
  """
  sets = collections.defaultdict(list)
  for file in split_files:
    parts = _stems(file.relative_to(folder))
    words = (_set_name(part) for part in (parts if by_name else parts[:-1]))
    sets[tuple(word for word in words if word)].append(file)
  if len(sets) > 1:
    places = [_place(folder, members, split_files) for members in sets.values()]
    raise ConfigError(
        f"{key} = {str(folder)!r}: files of {len(sets)} sets: {_path_list(places)}, which would be "
        f"mixed. Fix: {key}={folder / places[0]}, or another of them.")


def _set_name(stem: str) -> tuple[str, ...]:
  """Returns what tells one set from another in a part of a path.

  A number in isolation tells nothing, because shards have one, but it does in aime24, in v2, and as
  a year next to a name.
  """
  out, years = [], []
  for words in _parts(stem):
    content_words = [word for word in words if word not in SPLIT_OF and word not in NUMBERING]
    text = "".join(content_words)
    if re.fullmatch(r"(19|20)\d\d", text):
      years.append(text)
    elif re.fullmatch(r"v\d+", text):
      out.append(text)
    elif any(len(word) > 1 and word.isalpha() for word in content_words) and not _is_hash(text):
      out.append(text)
  return (*out, *years) if out else ()


def _is_hash(text: str) -> bool:
  """Returns whether a text is the hash of a shard: hexadecimal, with a digit, and long."""
  return re.fullmatch(r"(?=.*\d)[0-9a-f]{4,}", text) is not None


def _place(folder: Path, members: list[Path], split_files: list[Path]) -> Path:
  """Returns the largest folder that holds these files and no other of `split_files`, or the first
  file, relative to `folder`.
  """
  place = Path(os.path.commonpath(members))
  other_files = [file for file in split_files if file not in members]
  if any(file.is_relative_to(place) for file in other_files):
    return members[0].relative_to(folder)
  while not any(file.is_relative_to(place.parent) for file in other_files):
    place = place.parent
  return place.relative_to(folder)


def _log(key: str, folder: Path, split_files: list[Path], unnamed: list[Path],
         by_name: bool) -> None:
  """Says which files are read, where the paths leave it open."""
  names = _path_list([file.relative_to(folder) for file in split_files])
  if not by_name and len(split_files) > 1:
    logger.warning("%s = %s: no path there names a split, so that all of its %d files are read: %s",
                   key, folder, len(split_files), names)
  elif not by_name:
    logger.warning("%s = %s: its only file is read, whose path names no split: %s", key, folder,
                   names)
  elif unnamed:
    logger.warning("%s = %s: read are %s; not read are %s, whose paths name no split", key, folder,
                   names, _path_list([file.relative_to(folder) for file in unnamed]))
  elif len({file.parent for file in split_files}) > 1:
    logger.warning("%s = %s: files of several folders are read as one set: %s", key, folder, names)
  else:
    logger.info("%s = %s: read are %s", key, folder, names)


def _path_list(paths: list[Path]) -> str:
  suffix = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
  return ", ".join(map(str, paths[:SHOWN])) + suffix
