"""From rows of a file to problems: conversion, unique ids, and the length filter."""

import collections
import dataclasses
import logging
from collections.abc import Callable

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.grading.grading import Verdict, judge
from jaxrl_llm.tasks.mappings import Fields, Mapping
from jaxrl_llm.tasks.readers import read_rows
from jaxrl_llm.tasks.rows import RowError, check_text, scalar
from jaxrl_llm.types import Problem

SHOWN = 5  # bad rows that are named in the log
SHOWN_CHARACTERS = 60  # of an answer

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
  """

  problems: list[Problem]
  lengths: list[int]
  read: int
  too_long: int
  duplicates: int
  bad: int


@dataclasses.dataclass(frozen=True)
class Source:
  """A file of problems, and how its rows are read.

  Attributes:
    key: configuration key that holds `path`, for messages.
    path, split: see `readers.read_rows`.
    mapping: converts rows to fields.
    verifier: kind of answer check; an answer that it could never score is a bad row.
    bad_rows: "error", or "drop" to leave out and count bad rows.
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


def load(source: Source, prompt_ids: Callable[..., list[int]],
         limit: int | None) -> ProblemTable:
  """Reads all problems of a source into memory.

  Args:
    prompt_ids: maps a prompt and its context to ids.
    limit: tokens of the longest prompt that is kept; None: all.

  Raises:
    ConfigError: a row that does not convert, cannot be rendered or repeats an id, with file and
      line; no row; no prompt that fits.
  """
  problems, lengths, counts, longest = [], [], collections.Counter(), 0
  names, reasons = Names(source), []
  for place, row in read_rows(source.key, source.path, source.split):
    counts["read"] += 1
    try:
      fields = _converted(place, row, source)
      teacher = _teacher(place, row, source)
      name = names.of(place, fields, counts["read"])
      tokens = 0 if name is None else _length(place, row, fields, prompt_ids)
    except ConfigError as error:
      # The name of a column or a path may not be printable.
      message = str(error).encode(errors="backslashreplace").decode()
      counts["bad"] += 1
      reasons += [message] if counts["bad"] <= SHOWN else []
      if source.bad_rows == "error":
        if counts["bad"] == SHOWN:
          break
      elif counts["bad"] <= SHOWN:
        logger.warning("left out: %s", message)
      continue
    if name is None:
      counts["duplicates"] += 1
      continue
    longest = max(longest, tokens)
    if limit is not None and tokens > limit:
      counts["too_long"] += 1
      continue
    problems.append(Problem(fields.prompt, fields.answer, fields.demonstration, name,
                            fields.context, teacher))
    lengths.append(tokens)
  if reasons and source.bad_rows == "error":
    raise ConfigError(_bad_rows(reasons, _bad_rows_key(source.key)))
  if counts["read"] and counts["bad"] == counts["read"]:
    raise ConfigError(f"{source.key} = {source.path!r}: all of its {counts['bad']} rows are bad. "
                      f"The first: {reasons[0]}")
  _check_some(source, counts, problems, limit, longest)
  if counts["too_long"]:
    logger.warning("%s = %s: %d of %d prompts are longer than rollout.max_prompt_tokens = %d and "
                   "left out, the longest has %d tokens. Fix: rollout.max_prompt_tokens >= %d, if "
                   "they are meant", source.key, source.path, counts["too_long"], counts["read"],
                   limit, longest, longest)
  logger.info("%s: %d rows read, %d bad, %d repeated, %d prompts above rollout.max_prompt_tokens = "
              "%s dropped (longest: %d)", source.path, counts["read"], counts["bad"],
              counts["duplicates"], counts["too_long"], limit, longest)
  return ProblemTable(problems, lengths, counts["read"], counts["too_long"],
                      counts["duplicates"], counts["bad"])


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


def _length(place: str, row: dict | ConfigError, fields: Fields,
            prompt_ids: Callable[..., list[int]]) -> int:
  """Returns the tokens of a row's prompt.

  Raises:
    ConfigError: with the place; the prompt cannot be made.
  """
  try:
    return len(prompt_ids(fields.prompt, fields.context))
  except Exception as error:  # whatever templates and tokenizers raise
    text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    fix = "" if "Fix: " in text else ". Fix: the row, or task.prompt."
    raise ConfigError(f"{place}, {_column(row, fields.prompt)}: {text}{fix}") from error


def _column(row: dict | ConfigError, text: str) -> str:
  """Returns the column of a row that holds a text, in words."""
  columns = row.items() if isinstance(row, dict) else ()
  for same in (True, False):
    for name, value in columns:
      cell = str(value).strip()
      if cell == text.strip() if same else text.strip() in cell:
        return f"column {name!r}"
  return "all columns together"


def _check_some(source: Source, counts: dict[str, int], problems: list[Problem],
                limit: int | None, longest: int) -> None:
  """Refuses a source that leaves no problem."""
  key, path = source.key, source.path
  if not counts["read"]:
    raise ConfigError(f"{key} = {path!r}: the file has no rows. Fix: a file with problems.")
  if not problems:
    raise ConfigError(
        f"rollout.max_prompt_tokens = {limit}: every prompt of {key} = {path!r} is longer; "
        f"the longest has {longest} tokens. Fix: rollout.max_prompt_tokens >= {longest}, or less "
        "text in task.prompt.", {"rollout.max_prompt_tokens": longest})


def _bad_rows(reasons: list[str], key: str) -> str:
  """Returns what is wrong with the first bad rows of a file, and the key that leaves them out."""
  causes = [reason.partition(". Fix: ")[0] for reason in reasons]
  first = causes[0].partition(": ")[2]
  other_causes = [cause for cause in causes[1:] if cause.partition(": ")[2] != first]
  same = len(causes) - 1 - len(other_causes)
  more = f" {same} more bad rows have the same cause." if same else ""
  more += f" Other bad rows: {'; '.join(other_causes)}." if other_causes else ""
  return f"{reasons[0]} Or {key}=drop.{more}"


def _bad_rows_key(key: str) -> str:
  return "task.data.bad_rows" if key.startswith("task.data.") else "bad_rows of the same section"


def _converted(place: str, row: dict | ConfigError, source: Source) -> Fields:
  """Returns the fields of a row.

  Raises:
    ConfigError: with the place; the row could not be read, or does not convert.
  """
  if isinstance(row, ConfigError):
    raise row
  try:
    fields = source.mapping.convert(row)
    _check_fields(fields)
    # An empty completion is wrong, not unscored, unless the answer itself is at fault.
    verdict = _check_answer(source.verifier, fields.answer)
    if isinstance(verdict, Verdict) and (reason := verdict.unscored_reason):
      raise RowError(f"answer {_short(fields.answer)} for task.data.verifier = {source.verifier!r} "
                     f"({_column(row, fields.answer)}): {reason}")
    return fields
  except RowError as error:
    raise ConfigError(
        f"{place}: {error}. Fix: the row, task.data.mapping, or the keys of the columns "
        "(task.data.prompt_column, .answer_column, .demonstration_column).") from error


def _teacher(place: str, row: dict | ConfigError, source: Source) -> str:
  """Returns the name of a row's teacher; empty without a column.

  Raises:
    ConfigError: with the place; the row names none.
  """
  if isinstance(row, ConfigError) or not source.teacher_column:
    return ""
  try:
    return scalar(row, source.teacher_column)
  except RowError as error:
    raise ConfigError(f"{place}: {error}. Fix: the row, or another "
                      "task.data.teacher_column.") from error


def _check_fields(fields: Fields) -> None:
  """Refuses what a plugin's mapping may return: no text, or one that no tokenizer can read."""
  texts = {"prompt": fields.prompt, "answer": fields.answer}
  texts |= {name: value for name in ("demonstration", "id")
            if (value := getattr(fields, name)) is not None}
  for name, value in texts.items():
    if not isinstance(value, str) or (name == "prompt" and not value.strip()):
      raise RowError(f"Fields.{name} = {value!r}; a text was expected")
    check_text(f"Fields.{name}", value)


def _short(text: str) -> str:
  return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")


def _check_answer(verifier: str, answer: str):
  """Returns the verdict on an empty completion.

  Raises:
    RowError: the check fails with this answer.
  """
  try:
    return judge(verifier, "", answer)
  except (Exception, SystemExit) as error:  # whatever a plugin's verifier raises
    raise RowError(f"answer {_short(answer)} for task.data.verifier = {verifier!r}: "
                   f"{type(error).__name__}: {error}") from error
