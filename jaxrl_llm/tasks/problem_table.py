"""From rows of a file to problems: conversion, unique ids, and the length filter."""

import collections
import dataclasses
import logging
from collections.abc import Callable

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.grading.grading import Verdict, judge
from jaxrl_llm.tasks.mappings import Fields, Mapping, RowError
from jaxrl_llm.tasks.readers import read_rows
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
    duplicates: rows dropped because an earlier row has the same id.
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
    mapping: from rows to fields.
    verifier: kind of answer check; an answer that it could never score is a bad row.
    bad_rows: "error", or "drop" to leave out and count bad rows.
    name: put before ids, where several sources are read.
    rows: put before the number of a row without an id.
  """

  key: str
  path: str
  split: str
  mapping: Mapping
  verifier: str
  bad_rows: str = "error"
  name: str = ""
  rows: str = ""


def load(source: Source, prompt_ids: Callable[..., list[int]],
         limit: int | None) -> ProblemTable:
  """Reads all problems of a source into memory.

  Args:
    prompt_ids: from a prompt and its context to ids.
    limit: tokens of the longest prompt that is kept; None: all.

  Raises:
    ConfigError: a row that does not convert or repeats an id, with file and line; no row; no prompt
      that fits.
  """
  problems, lengths, counts, longest = [], [], collections.Counter(), 0
  seen: dict[str, str] = {}
  for place, row in read_rows(source.key, source.path, source.split):
    counts["read"] += 1
    try:
      fields = _converted(place, row, source)
      numbered = f"{source.rows}{counts['read']}"
      name = source.name + (numbered if fields.id is None else fields.id)
      if name in seen and not source.mapping.repeats:
        raise ConfigError(
            f"{place}: id {name!r} occurs for the second time, first at {seen[name]}. "
            "Fix: unique ids, or another task.data.id_column.")
    except ConfigError as error:
      if source.bad_rows == "error":
        raise ConfigError(f"{error} Or {_bad_rows_key(source.key)}=drop.") from error
      counts["bad"] += 1
      if counts["bad"] <= SHOWN:
        logger.warning("left out: %s", error)
      continue
    if name in seen:
      counts["duplicates"] += 1
      continue
    seen[name] = place
    tokens = len(prompt_ids(fields.prompt, fields.context))
    longest = max(longest, tokens)
    if limit is not None and tokens > limit:
      counts["too_long"] += 1
      continue
    problems.append(Problem(fields.prompt, fields.answer, fields.demonstration, name,
                            fields.context))
    lengths.append(tokens)
  _check_some(source, counts, problems, limit, longest)
  logger.info("%s: %d rows read, %d bad, %d repeated, %d prompts above rollout.max_prompt_tokens = "
              "%s dropped (longest: %d)", source.path, counts["read"], counts["bad"],
              counts["duplicates"], counts["too_long"], limit, longest)
  return ProblemTable(problems, lengths, counts["read"], counts["too_long"],
                      counts["duplicates"], counts["bad"])


def _check_some(source: Source, counts: dict[str, int], problems: list[Problem],
                limit: int | None, longest: int) -> None:
  """Refuses a source that leaves no problem."""
  key, path = source.key, source.path
  if not counts["read"]:
    raise ConfigError(f"{key} = {path!r}: the file has no rows. Fix: a file with problems.")
  if counts["bad"] == counts["read"]:
    raise ConfigError(f"{key} = {path!r}: all of its {counts['bad']} rows are bad. Fix: "
                      "task.data.mapping, or the task.data columns.")
  if not problems:
    raise ConfigError(
        f"rollout.max_prompt_tokens = {limit}: every prompt of {key} = {path!r} is longer; "
        f"the longest has {longest} tokens. Fix: rollout.max_prompt_tokens >= {longest}, or less "
        "text in task.prompt.")


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
    # An empty completion is wrong, not unscored, unless the answer itself is at fault.
    verdict = judge(source.verifier, "", fields.answer)
    if isinstance(verdict, Verdict) and (reason := verdict.unscored_reason):
      raise RowError(
          f"answer {fields.answer!r} for task.data.verifier = {source.verifier!r}: {reason}")
    return fields
  except RowError as error:
    raise ConfigError(
        f"{place}: {error}. Fix: the row, task.data.mapping, or the task.data columns.") from error
