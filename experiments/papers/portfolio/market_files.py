"""Daily closes and headlines of CSV files of the user; bad rows are named by file and line.

  closes.csv       date,BTC,ETH,...       one file with a column an asset, or
  BTC=a.csv,...    date,...,close,...     one file an asset, of which `date` and `close` are read
  headlines.csv    time,title,...         further columns are ignored

Dates are ISO (2021-01-31, with a time behind it or without). A market without a closing time has a
close every day, so that a missing day is a bad row: a return over two days is no daily return.
"""

import csv
import dataclasses
import datetime
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxrl_llm.fields import ConfigError

SHOWN = 3  # bad rows that an error names; of the others it says the number


@dataclasses.dataclass(frozen=True)
class Closes:
  """Closing prices of consecutive days.

  Attributes:
    days: [D] datetime64[D].
    assets: A names.
    prices: [D, A] float64, above 0.
  """

  days: np.ndarray
  assets: tuple[str, ...]
  prices: np.ndarray


@dataclasses.dataclass(frozen=True)
class Headline:
  """A headline: the day of its time stamp, in whichever zone the file has, and its title."""

  day: datetime.date
  title: str


def read_closes(spec: str, start: str = "", end: str = "") -> Closes:
  """Reads closes of the days from `start` to `end`, both included; rows of other days are skipped.

  Args:
    spec: a path, or `ASSET=path` pairs with commas between them. Of several files the days count
      that all of them have.
    start, end: ISO dates; empty: the first and the last day that every file has.

  Raises:
    ConfigError: no such file or column, or rows that are no date, no price above 0, out of order,
      or with a day missing before them; names file and line.
  """
  limits = tuple(datetime.date.fromisoformat(text) if text else None for text in (start, end))
  if "=" in spec:
    columns = {}
    for part in spec.split(","):
      asset, _, path = part.strip().partition("=")
      columns[asset] = _column_of(path, "close", limits)
  else:
    path = Path(spec)
    names = [name for name in _header(path) if name.strip().lower() != "date"]
    columns = _columns(path, names, limits)
  common = sorted(set.intersection(*(set(column) for column in columns.values())))
  if len(common) < 2:
    raise ConfigError(f"{spec}: {len(common)} days in common from {start or 'the first'} to "
                      f"{end or 'the last'}. Fix: files and dates that overlap.")
  gap = next((b for a, b in itertools.pairwise(common) if (b - a).days > 1), None)
  if gap is not None:
    raise ConfigError(f"{spec}: not all files have the day before {gap}. Fix: add it.")
  prices = np.array([[column[day] for column in columns.values()] for day in common])
  return Closes(np.array(common, "datetime64[D]"), tuple(columns), prices)


def read_headlines(path: str) -> list[Headline]:
  """Reads the headlines of a file with the columns `time` and `title`, in the file's order.

  Raises:
    ConfigError: no such file or column, or rows without a time or a title; names file and line.
  """
  file, headlines, bad = Path(path), [], []
  for line, row in _rows(file, ("time", "title")):
    day, title = _day(row["time"]), (row["title"] or "").strip()
    if day is None:
      bad.append((line, f"time = {row['time']!r} is no ISO date"))
    elif not title:
      bad.append((line, "title is empty"))
    else:
      headlines.append(Headline(day, title))
  _refuse(file, bad)
  return headlines


def _column_of(path: str, name: str, limits) -> dict[datetime.date, float]:
  """Returns the column of a file whose name is `name` in whichever case."""
  file = Path(path)
  names = [column for column in _header(file) if column.strip().lower() == name]
  if len(names) != 1:
    raise ConfigError(f"{path}:1: {len(names)} columns {name!r}. Fix: one.")
  return _columns(file, names, limits)[names[0]]


def _columns(path: Path, names: list[str], limits) -> dict[str, dict[datetime.date, float]]:
  """Returns {column: {day: price}} of a file's rows within `limits`."""
  header = _header(path)
  date = next((column for column in header if column.strip().lower() == "date"), None)
  if date is None or not names:
    raise ConfigError(f"{path}:1: columns {', '.join(header)}. Fix: `date` and one an asset.")
  columns: dict[str, dict[datetime.date, float]] = {name: {} for name in names}
  bad, before = [], None
  for line, row in _rows(path, (date, *names)):
    day = _day(row[date])
    if day is None:
      bad.append((line, f"date = {row[date]!r} is no ISO date"))
      continue
    if (limits[0] and day < limits[0]) or (limits[1] and day > limits[1]):
      continue
    if before is not None and (day - before).days != 1:
      bad.append((line, f"{day} follows {before}: one row a day, in order, was expected"))
    before = day
    for name in names:
      price = _price(row[name])
      if price is None:
        bad.append((line, f"{name} = {row[name]!r} is no price above 0"))
      else:
        columns[name][day] = price
  _refuse(path, bad)
  return columns


def _day(text: str | None) -> datetime.date | None:
  try:
    return datetime.date.fromisoformat((text or "").strip()[:10])
  except ValueError:
    return None


def _price(text: str | None) -> float | None:
  try:
    price = float(text or "")
  except ValueError:
    return None
  return price if math.isfinite(price) and price > 0 else None


def _header(path: Path) -> list[str]:
  try:
    with path.open(newline="", encoding="utf-8-sig") as file:
      return next(csv.reader(file), [])
  except (OSError, UnicodeDecodeError) as error:
    raise ConfigError(f"{path}: cannot be read: {error}. Fix: the path of a CSV file in UTF-8."
                      ) from error


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict]]:
  """Yields (line, row) of a file that has the needed columns."""
  lacking = [name for name in needed if name not in _header(path)]
  if lacking:
    raise ConfigError(f"{path}:1: no column {', '.join(lacking)}. Fix: a header with it.")
  with path.open(newline="", encoding="utf-8-sig") as file:
    reader = csv.DictReader(file)
    yield from ((reader.line_num, row) for row in reader)


def _refuse(path: Path, bad: list[tuple[int, str]]) -> None:
  """Raises for bad rows, of which the first ones are named."""
  if bad:
    more = f"; and {len(bad) - SHOWN} more rows" if len(bad) > SHOWN else ""
    raise ConfigError("; ".join(f"{path}:{line}: {reason}" for line, reason in bad[:SHOWN])
                      + f"{more}. Fix: mend or remove the rows.")
