"""Keys with which `task.data` would read a file, proposed from the file's first rows.

A proposal only completes the message about a file that cannot be read as the config says. Nothing
trains on it before the user has set these keys.
"""

import collections
import contextlib
import dataclasses
import importlib.util
import itertools
import logging
import re
from collections.abc import Iterator
from typing import Any

from jaxrl_llm.config import ConfigError, TaskConfig
from jaxrl_llm.grading.grading import Verdict, judge
from jaxrl_llm.tasks import problem_table
from jaxrl_llm.tasks.data import AUTO, DataConfig
from jaxrl_llm.tasks.readers import read_rows
from jaxrl_llm.tasks.rows import is_messages, leaves

ROWS = 200  # from which columns are proposed
# Names of columns in public data sets, the likeliest first.
PROMPTS = ("problem", "question", "prompt", "messages", "conversation", "conversations", "query",
           "input", "instruction", "text", "task", "q")
ANSWERS = ("answer", "final_answer", "ground_truth", "gold", "label", "target", "expected",
           "correct", "answers", "solution", "output", "response", "completion", "value", "a")
DEMONSTRATIONS = ("demonstration", "solution", "rationale", "completion", "response", "output",
                  "reasoning", "explanation", "work")
LETTER = re.compile(r"\(?[A-Ja-j]\)?\.?")


def proposal(cfg: TaskConfig) -> dict[str, str]:
  """Returns values of task.data for a file whose named columns or verifier do not fit.

  Returns:
    {full key: value} for keys whose present value does not fit; empty where all do, or where the
    file cannot be read at all.
  """
  rows = [leaves(row) for row in _rows(cfg.data)]
  counts = collections.Counter(itertools.chain.from_iterable(rows))
  columns = [name for name, count in counts.items() if 2 * count > len(rows)]
  rows = [row for row in rows if set(columns) <= row.keys()]  # a row that lacks one is a bad row
  if not rows or cfg.data.mapping != AUTO:
    return {}
  names = {"prompt_column": _prompt_column(rows, columns, cfg.data.prompt_column)}
  names["answer_column"] = _answer_column(rows, columns, cfg.data.answer_column,
                                          names["prompt_column"])
  if cfg.data.demonstration_column and cfg.data.demonstration_column not in columns:
    names["demonstration_column"] = (
        _answered_messages(rows, names["prompt_column"])
        or _by_name(_texts(rows, columns), DEMONSTRATIONS, names["prompt_column"])
        or names["answer_column"])
  if names["answer_column"]:
    answers = [str(row[names["answer_column"]]) for row in rows]
    column = names.get("demonstration_column") or cfg.data.demonstration_column
    demonstrations = [_text(row[column]) for row in rows] if column in columns else None
    names["verifier"] = _verifier(cfg.data.verifier, answers, demonstrations)
  return {f"task.data.{key}": value for key, value in names.items()
          if value and value != getattr(cfg.data, key)}


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
  """Silences the log of dropped rows, for a trial that only serves a message."""
  logger = logging.getLogger(problem_table.__name__)
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(level)


def with_proposal(cfg: TaskConfig, fixes: dict[str, str], heldout: int | None,
                  bad_rows: str) -> TaskConfig:
  """Returns the task's config with proposed values.

  Args:
    fixes: of `proposal`.
    heldout: in place of task.heldout_problems; None: it stays.
    bad_rows: in place of task.data.bad_rows.
  """
  data = dataclasses.replace(
      cfg.data, bad_rows=bad_rows, **{key.rsplit(".", 1)[1]: value for key, value in fixes.items()})
  changes: dict[str, Any] = {} if heldout is None else {"heldout_problems": heldout}
  return dataclasses.replace(cfg, given=tuple({**dict(cfg.given), "data": data}.items()), **changes)


def fewer_heldout(cfg: TaskConfig) -> int | None:
  """Returns how many of a file's rows to hold out if it has fewer than the config asks for.

  A fifth of its readable rows; None where the config's number fits, or another file has them.
  """
  if cfg.data.heldout_path or cfg.heldout_problems == 0:
    return None
  rows = _rows(cfg.data, None)
  fits = 0 < cfg.heldout_problems < len(rows)
  return None if fits or not rows else len(rows) // 5


def _rows(data: DataConfig, limit: int | None = ROWS) -> list[dict]:
  """Returns the first rows of the first file of `path` that can be read."""
  try:
    rows = read_rows("task.data.path", data.path.split(",")[0].strip(), data.split)
    return [row for _, row in itertools.islice(rows, limit) if isinstance(row, dict)]
  except ConfigError:
    return []


def _prompt_column(rows: list[dict], columns: list[str], present: str) -> str:
  """Returns the configured column if it exists, else a likely one, else the longest texts'."""
  readable = [name for name in columns
              if all(isinstance(row[name], str) or is_messages(row[name])
                     for row in rows)]
  if present in readable:
    return present
  return _by_name(readable, PROMPTS) or max(
      readable, key=lambda name: sum(len(str(row[name])) for row in rows), default="")


def _answer_column(rows: list[dict], columns: list[str], present: str, prompt: str) -> str:
  """Returns the configured column if it exists, else a likely one, else the last scalar."""
  scalars = [name for name in columns if name != prompt
             and all(isinstance(row[name], (str, int, float)) for row in rows)]
  if present in scalars:
    return present
  return _by_name(scalars, ANSWERS) or (scalars[-1] if scalars else "")


def _answered_messages(rows: list[dict], column: str) -> str:
  """Returns a column of message lists, each of which ends with a message that is not the user's."""
  lists = [row[column] for row in rows if column and is_messages(row[column])]
  answered = len(lists) == len(rows) and all(value[-1].get("role") != "user" for value in lists)
  return column if answered else ""


def _texts(rows: list[dict], columns: list[str]) -> list[str]:
  return [name for name in columns if all(isinstance(row[name], str) for row in rows)]


def _by_name(columns: list[str], likely: tuple[str, ...], prompt_column: str = "") -> str:
  """Returns the column whose name, or last part of it, comes first in `likely`; empty: none."""
  for name in likely:
    for column in columns:
      if column != prompt_column and name in (column.lower(), column.lower().rsplit(".", 1)[-1]):
        return column
  return ""


def _text(value) -> str:
  """Returns a demonstration as text; for messages, the last one's text."""
  return str(value[-1]["content"] if is_messages(value) else value)


def _verifier(present: str, answers: list[str], demonstrations: list[str] | None) -> str:
  """Returns the first verifier, the configured one before others, that can score every answer and
  takes most demonstrations for right; without such a one, the first that can score every answer.

  Args:
    demonstrations: worked answers; None without any.
  """
  has_math = importlib.util.find_spec("math_verify") is not None
  letters = all(LETTER.fullmatch(text.strip()) for text in answers)
  kinds = dict.fromkeys([present, "choice" if letters else "numeric", "math", "exact"])
  able = {}
  for kind in kinds:
    name = "math" if kind == AUTO else kind
    if name == "math" and not has_math:
      continue
    verdicts = [_verdict(name, *pair)
                for pair in zip(demonstrations or answers, answers, strict=True)]
    if None not in verdicts:
      able[kind] = demonstrations is None or 2 * sum(verdicts) >= len(verdicts)
  return next((kind for kind, right in able.items() if right), next(iter(able), present))


def _verdict(verifier: str, completion: str, answer: str) -> bool | None:
  """Returns whether a verifier takes a completion for right; None where it cannot score the answer.
  A comparison that is left to algebra counts as right.
  """
  try:
    verdict = judge(verifier, completion, answer)
  except Exception:  # whatever a plugin's verifier raises
    return None
  if not isinstance(verdict, Verdict):
    return True
  return None if verdict.unscored_reason else bool(verdict.correct)
