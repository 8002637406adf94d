"""From rows of a file to problems: conversion, unique ids, and the length filter."""

import dataclasses
import logging
from collections.abc import Callable

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.tasks.grading import Verdict, judge
from jaxrl_llm.tasks.mappings import Fields, Mapping, RowError
from jaxrl_llm.tasks.readers import read_rows
from jaxrl_llm.types import Problem

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ProblemTable:
  """Problems of one source, in file order.

  Attributes:
    lengths: tokens of each prompt.
    read: number of rows read.
    too_long: rows dropped for their length.
    duplicates: rows dropped because an earlier row has the same id.
  """

  problems: list[Problem]
  lengths: list[int]
  read: int
  too_long: int
  duplicates: int


def load(key: str, path: str, split: str, mapping: Mapping, verifier: str,
         prompt_ids: Callable[[str], list[int]], limit: int | None) -> ProblemTable:
  """Reads all problems of `path` into memory.

  Args:
    key: configuration key that holds `path`.
    verifier: kind of answer check; an answer that it could never score is an error.
    limit: tokens of the longest prompt that is kept; None: all.

  Raises:
    ConfigError: a row that does not convert or repeats an id, with file and line; no row; no prompt
      that fits.
  """
  problems, lengths, read, duplicates, too_long, longest = [], [], 0, 0, 0, 0
  seen: dict[str, str] = {}
  origin = "heldout-" if key.endswith("heldout_path") else ""
  for place, row in read_rows(key, path, split):
    read += 1
    fields = _converted(place, row, mapping, verifier)
    name = fields.id if fields.id is not None else f"{origin}{read}"
    if name in seen:
      if not mapping.repeats:
        raise ConfigError(
            f"{place}: id {name!r} occurs for the second time, first at {seen[name]}. "
            "Fix: unique ids, or another task.data.id_column.")
      duplicates += 1
      continue
    seen[name] = place
    tokens = len(prompt_ids(fields.prompt))
    longest = max(longest, tokens)
    if limit is not None and tokens > limit:
      too_long += 1
      continue
    problems.append(Problem(fields.prompt, fields.answer, fields.demonstration, name))
    lengths.append(tokens)
  if not read:
    raise ConfigError(f"{key} = {path!r}: the file has no rows. Fix: a file with problems.")
  if not problems:
    raise ConfigError(
        f"rollout.max_prompt_tokens = {limit}: every prompt of {key} = {path!r} is longer; "
        f"the longest has {longest} tokens. Fix: rollout.max_prompt_tokens >= {longest}, or less "
        "text in task.prompt.")
  logger.info(
      "%s: %d rows read, %d repeated, %d prompts above rollout.max_prompt_tokens = %s dropped "
      "(longest: %d)", path, read, duplicates, too_long, limit, longest)
  return ProblemTable(problems, lengths, read, too_long, duplicates)


def _converted(place: str, row: dict, mapping: Mapping, verifier: str) -> Fields:
  try:
    fields = mapping.convert(row)
    # An empty completion is wrong, not unscored, unless the answer itself is at fault.
    verdict = judge(verifier, "", fields.answer)
    if isinstance(verdict, Verdict) and (reason := verdict.unscored_reason):
      raise RowError(f"answer {fields.answer!r} for task.data.verifier = {verifier!r}: {reason}")
    return fields
  except RowError as error:
    raise ConfigError(
        f"{place}: {error}. Fix: the row, task.data.mapping, or the task.data columns.") from error
