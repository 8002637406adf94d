"""A line of experiments/tables.md, and the places of its numbers in the committed pages."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from experiments.tables_lib.page_parts import Place
from experiments.tables_lib.published import Claim

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Row:
  """A line of the list.

  Attributes:
    name: folder of the table.
    result: with {} for each number.
    numbers: place of each number; see `published.Claim`.
    published: the claim and its source.
    verdict: in words, or how it is computed from the table.
    commit: at which it last ran, of a toy whose results do not say so.
  """

  name: str
  question: str
  command: str
  result: str
  numbers: tuple[Place | tuple, ...]
  published: str
  verdict: str | Callable[[], str]
  commit: str = ""


def both(part: str, row: tuple[str, ...], column: str, title: str = "") -> tuple[Place, Place]:
  """Returns the places of a mean and of the number after its `±`."""
  return (Place(part, row, column, 0, title), Place(part, row, column, 1, title))


def interval(part: str, row: tuple[str, ...], column: str) -> tuple[Place, Place, Place]:
  """Returns the places of a difference, and of the two ends of its interval."""
  return (*both(part, row, column), Place(part, row, column, 2))


def flat(pairs: Iterable[tuple[Place, ...]]) -> tuple[Place, ...]:
  return tuple(place for pair in pairs for place in pair)


def folder(name: str) -> Path:
  """Returns the folder of a table, which a paper's has among the papers."""
  return HERE / name if (HERE / name).exists() else HERE / "papers" / name


def filled(text: str, name: str, places: tuple[Place | tuple, ...]) -> str:
  """Returns a text with the numbers that a table's page has at these places."""
  return text.format(*(Claim(name, "", None, place).here(folder(name)) for place in places))
