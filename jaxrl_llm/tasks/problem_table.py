"""From rows of a file to problems: conversion, unique ids, and the length filter."""

import collections
import dataclasses
import logging
from collections.abc import Callable

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.grading.grading import KINDS, unmet
from jaxrl_llm.registry import MAPPINGS
from jaxrl_llm.tasks.mappings import Fields, Mapping
from jaxrl_llm.tasks.readers import read_rows
from jaxrl_llm.tasks.rows import RowError, check_text, scalar, shorten
from jaxrl_llm.types import Problem

SHOWN = 5  # bad rows that are named in the log

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ProblemTable:
  """Problems of one source, in file order.

  Attributes:
    lengths: tokens of each prompt.
    read: number of rows read.
    too_long: rows dropped for their length.
    duplicates: rows dropped because an earlier row has the same text.
    bad: rows dropped because they cannot be read or converted.
    unmet: the first answer that no completion can meet; None: there is none.
  """

  problems: list[Problem]
  lengths: list[int]
  read: int
  too_long: int
  duplicates: int
  bad: int
  unmet: ConfigError | None


@dataclasses.dataclass(frozen=True)
class Source:
  """A file of problems, and how its rows are read.

  Attributes:
    key: configuration key that holds `path`, for messages.
    path, split: see `readers.read_rows`.
    mapping: converts rows to fields.
    verifier: kind of answer check; an answer that it could never score is a bad row. Empty: answers
      are not read.
    bad_rows: "error", or "drop" to leave out and count bad rows, and rows with unmet answers.
    name: put before ids, where several sources are read.
    rows: put before the number of a row without an id.
    teacher_column: column of the name of the row's teacher; empty: none is read.
  """

  key: str
  path: str
  split: str
  mapping: Mapping
  verifier: str
  bad_rows: str = "error"
  name: str = ""
  rows: str = ""
  teacher_column: str = ""


def load(source: Source, prompt_ids: Callable[..., list[int]], limit: int | None) -> ProblemTable:
  """Reads all problems of a source into memory.

  Args:
    prompt_ids: maps a prompt and its context to ids.
    limit: tokens of the longest prompt that is kept; None: all.

  Raises:
    ConfigError: a row that does not convert, cannot be rendered or repeats an id, with file and
      line; no row; no prompt that fits.
  """
  problems, lengths, counts, longest, first_unmet = [], [], collections.Counter(), 0, None
  names, key, path = Names(source), source.key, source.path
  for place, row in read_rows(key, path, source.split):
    counts["read"] += 1
    try:
      fields, teacher = _converted(place, row, source)
      error = _gold_error(place, row, fields, source)  # type: ignore[arg-type]  # else raised
      if error is not None and source.bad_rows == "drop":
        raise error
      first_unmet = first_unmet or error
      name = names.of(place, fields, counts["read"])
      tokens = 0 if name is None else _length(place, fields, prompt_ids)
    except ConfigError as error:
      # The name of a column or a path may not be printable.
      message = str(error).encode(errors="backslashreplace").decode()
      if source.bad_rows == "error":
        where = "task.data.bad_rows" if key.startswith("task.data.") else "the section's bad_rows"
        raise ConfigError(f"{message} Or {where}=drop.") from error
      counts["bad"] += 1
      if counts["bad"] <= SHOWN:
        logger.warning("left out: %s", message)
      continue
    longest = max(longest, tokens)
    if name is None:
      counts["duplicates"] += 1
    elif limit is not None and tokens > limit:
      counts["too_long"] += 1
    else:
      problems.append(Problem(fields.prompt, fields.answer, fields.demonstration, name,
                              fields.context, teacher))
      lengths.append(tokens)
  if not counts["read"]:
    raise ConfigError(f"{key} = {path!r}: the file has no rows. Fix: a file with problems.")
  if counts["bad"] == counts["read"]:
    raise ConfigError(f"{key} = {path!r}: all of its {counts['bad']} rows are bad, the last: "
                      f"{message}")
  if not problems:
    raise ConfigError(
        f"rollout.max_prompt_tokens = {limit}: every prompt of {key} = {path!r} is longer; "
        f"the longest has {longest} tokens. Fix: rollout.max_prompt_tokens >= {longest}, or less "
        "text in task.prompt.", {"rollout.max_prompt_tokens": longest})
  if counts["too_long"]:
    logger.warning("%s = %s: %d of %d prompts are longer than rollout.max_prompt_tokens = %d and "
                   "left out, the longest has %d tokens. Fix: rollout.max_prompt_tokens >= %d, if "
                   "they are meant", key, path, counts["too_long"], counts["read"], limit, longest,
                   longest)
  return ProblemTable(problems, lengths, counts["read"], counts["too_long"],
                      counts["duplicates"], counts["bad"], first_unmet)


class Names:
  """Gives each row of a source its id, and finds rows that repeat an earlier one.

  Rows are compared by their text, that is the prompt and the messages before it. The ids of a
  mapping may restart in each part of a file, so that an id with another text gets a number after
  it. Only a column that the user calls a unique id (task.data.id_column) must be one.
  """

  def __init__(self, source: Source):
    self._source = source
    self._by_name: dict[str, tuple[str, tuple]] = {}
    self._by_text: dict[tuple, tuple[str, str]] = {}
    self._disputed = 0

  def of(self, place: str, fields: Fields, number: int) -> str | None:
    """Returns the id of a row; None for one that repeats the text of an earlier one, where the
    mapping drops these.

    Args:
      number: of the row, which names it where it has no id.

    Raises:
      ConfigError: an earlier row has the same id where ids must be unique.
    """
    text = (fields.context, fields.prompt)
    if self._source.mapping.repeats:
      if text in self._by_text:
        self._compare(place, fields, *self._by_text[text])
        return None
      self._by_text[text] = place, fields.answer
    name = self._source.name + (f"{self._source.rows}{number}" if fields.id is None else fields.id)
    if name in self._by_name:
      first, earlier = self._by_name[name]
      if self._source.mapping.unique:
        raise ConfigError(
            f"{place}: id {name!r} occurs for the second time, first at {first}. Fix: unique ids, "
            "another task.data.id_column, or an empty one, which numbers the rows.")
      if text == earlier and not self._source.mapping.repeats:
        raise ConfigError(f"{place}: the row has the id {name!r} and the text of an earlier one, "
                          f"at {first}. Fix: remove one of them.")
      number = 2
      while f"{name}-{number}" in self._by_name:
        number += 1
      name = f"{name}-{number}"
    self._by_name[name] = place, text
    return name

  def _compare(self, place: str, fields: Fields, first: str, answer: str) -> None:
    """Warns of a repeated text whose answer is another one."""
    if fields.answer != answer:
      self._disputed += 1
      if self._disputed <= SHOWN:
        logger.warning("%s: the text of %s with another answer, %r instead of %r; the first one "
                       "counts", place, first, fields.answer, answer)


def _length(place: str, fields: Fields, prompt_ids: Callable[..., list[int]]) -> int:
  """Returns the tokens of a row's prompt.

  Raises:
    ConfigError: with the place; the prompt cannot be made.
  """
  try:
    return len(prompt_ids(fields.prompt, fields.context))
  except Exception as error:  # whatever templates and tokenizers raise
    text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    fix = "" if "Fix: " in text else ". Fix: the row, or task.prompt."
    raise ConfigError(f"{place}: {text}{fix}") from error


def _converted(place: str, row: dict | ConfigError, source: Source) -> tuple[Fields, str]:
  """Returns the fields of a row, and the name of its teacher; empty without a column of it.

  Raises:
    ConfigError: with the place; the row could not be read, or does not convert.
  """
  if isinstance(row, ConfigError):
    raise row
  try:
    fields = source.mapping.convert(row)
    _check_fields(fields)
    return fields, scalar(row, source.teacher_column) if source.teacher_column else ""
  except RowError as error:
    raise ConfigError(
        f"{place}: {error}. Fix: the row, task.data.mapping, or the keys of the columns "
        "(task.data.prompt_column, .answer_column, .demonstration_column, "
        ".teacher_column).") from error


def _check_fields(fields: Fields) -> None:
  """Refuses what a plugin's mapping may return: no text, or one that no tokenizer can read."""
  texts = {"prompt": fields.prompt, "answer": fields.answer}
  texts |= {name: value for name in ("demonstration", "id")
            if (value := getattr(fields, name)) is not None}
  for name, value in texts.items():
    if not isinstance(value, str) or (name == "prompt" and not value.strip()):
      raise RowError(f"Fields.{name} = {value!r}; a text was expected")
    check_text(f"Fields.{name}", value)


def _gold_error(place: str, row: dict, fields: Fields, source: Source) -> ConfigError | None:
  """Returns the error for an answer that no completion can meet, with the mapping or else the
  verifier of which one can; None for other answers.
  """
  reason = source.verifier and _unmet(source.verifier, fields.answer)
  if not reason:
    return None
  fixes = [f"task.data.mapping={name}" for name in MAPPINGS
           if _fits(MAPPINGS[name], row, fields.answer)]
  kinds = ("numeric", "choice", "math", "exact") if "\n" not in fields.answer else ("math",)
  fixes = fixes or [f"task.data.verifier={kind}" for kind in kinds
                    if not _unmet(kind, fields.answer)][:1]
  return ConfigError(
      f"{place}: answer {shorten(fields.answer)} for task.data.verifier = {source.verifier!r}: "
      f"{reason}. Fix: {' or '.join(fixes[:2]) or 'the row, or task.data.mapping'}, or "
      "task.data.bad_rows=drop, which leaves out such rows.")


def _fits(mapping: Mapping, row: dict, answer: str) -> bool:
  """Returns whether a mapping reads another answer in a row, which can be met."""
  try:
    other = mapping.convert(row).answer
  except RowError:
    return False
  return other != answer and mapping.verifier in KINDS and not _unmet(mapping.verifier, other)


def _unmet(verifier: str, answer: str) -> str | None:
  """Returns `grading.unmet`, or what a plugin's verifier raises."""
  try:
    return unmet(verifier, answer)
  except (Exception, SystemExit) as error:
    return f"{type(error).__name__}: {error}"
