"""Typed access to the columns of a row: texts, numbers, objects and lists of messages."""

import json
import math
import re

from jaxrl_llm.grading.extraction import last_boxed

# How a list of messages begins that was written as text, by JSON or by Python.
MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:""")
SURROGATE = re.compile("[\ud800-\udfff]")


class RowError(ValueError):
  """Says what is wrong with a row; the reader of the file adds the place."""


def text(row: dict, column: str) -> str:
  """Returns a non-empty text.

  Raises:
    RowError: no such column, another type, nothing in it, or what `check_text` refuses.
  """
  value = get_column(row, column)
  if not isinstance(value, str):
    raise RowError(
        f"column {column!r} holds {shorten(value)}, a {type(value).__name__}; a text was expected")
  if not value.strip():
    raise RowError(f"column {column!r} is empty")
  return check_text(f"column {column!r}", value)


def check_text(name: str, value: str) -> str:
  """Returns a text that a tokenizer can read and that is what it seems.

  Args:
    name: of the text, for messages.

  Raises:
    RowError: half of a surrogate pair, which no encoding has, or a list of messages as text.
  """
  if half := SURROGATE.search(value):
    raise RowError(f"{name} holds {half[0]!r} as character {half.start() + 1}, a lone surrogate, "
                   "which is no character")
  if MESSAGES_AS_TEXT.match(value):
    raise RowError(f"{name} holds a list of messages as text, {shorten(value)}; the mapping dapo "
                   "reads one in the column 'prompt'")
  return value


def scalar(row: dict, column: str) -> str:
  """Returns a text or a number as text; an integral float loses its point (27.0 -> 27).

  Raises:
    RowError: no such column, another type, nothing in it, or no finite number.
  """
  value = get_column(row, column)
  if (isinstance(value, float) and not math.isfinite(value)) or value in ("NaN", "nan"):
    raise RowError(f"column {column!r} holds {value}; an answer was expected")
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  if isinstance(value, bool) or not isinstance(value, (str, int, float)):
    raise RowError(
        f"column {column!r} holds {shorten(value)}, a {type(value).__name__}; "
        "a text or a number was expected")
  if not str(value).strip():
    raise RowError(f"column {column!r} is empty")
  return check_text(f"column {column!r}", str(value).strip())


def optional(row: dict, column: str) -> str | None:
  """Returns a text, or None if the column is absent, empty, or holds another type.

  Raises:
    RowError: as `check_text`.
  """
  value = row.get(column)
  if not isinstance(value, str) or not value.strip():
    return None
  return check_text(f"column {column!r}", value)


def first_of(row: dict, *columns: str) -> str:
  """Returns the first of these columns that a row has, of whatever case.

  Raises:
    RowError: it has none of them.
  """
  present = {str(name).lower(): str(name) for name in row}
  for column in columns:
    if column.lower() in present:
      return present[column.lower()]
  raise RowError(f"no column {' or '.join(map(repr, columns))}; columns present: "
                 f"{', '.join(map(str, row)) or 'none'}")


def boxed(solution: str) -> str:
  """Returns the content of the last balanced \\boxed{...} of a solution.

  Raises:
    RowError: there is none, or nothing is in it.
  """
  answer = last_boxed(solution)
  if not answer:
    raise RowError("the solution has no \\boxed{...} with an answer in it")
  return answer


def get_column(row: dict, column: str):
  """Returns the value of a column; an object's entry is named by a path, such as meta.answer.

  Raises:
    RowError: there is no such column.
  """
  if column in row:
    return row[column]
  values = leaves(row)
  if column not in values:
    raise RowError(f"no column {column!r}; columns present: {', '.join(values) or 'none'}")
  return values[column]


def get_entry(row: dict, column: str, name: str) -> str:
  """Returns an entry of an object, which may be written as the text of a JSON object.

  Raises:
    RowError: no object, or what `scalar` refuses.
  """
  value = get_column(row, column)
  if isinstance(value, str):
    value = _from_json(value)
  if not isinstance(value, dict):
    raise RowError(f"column {column!r} holds {shorten(row[column])}; an object was expected")
  try:
    return scalar(value, name)
  except RowError as error:
    raise RowError(f"column {column!r}: {error}") from error


def leaves(row: dict) -> dict:
  """Returns {column: value} of a row; a value inside an object has its path, such as meta.answer.
  """
  values = {}
  for name, value in row.items():
    inner = leaves(value) if isinstance(value, dict) else {}
    values |= {f"{name}.{key}": leaf for key, leaf in inner.items()} or {str(name): value}
  return values


def _from_json(value: str):
  """Returns what a text holds as JSON; None if it is no JSON."""
  try:
    return json.loads(value)
  except (ValueError, RecursionError):
    return None


def is_messages(value) -> bool:
  """Returns whether a value is a list of messages that has one of the user."""
  return (isinstance(value, list) and bool(value)
          and all(isinstance(message, dict) and "content" in message for message in value)
          and any(message.get("role") == "user" for message in value))


def split_messages(prompt) -> tuple[str, tuple[tuple[str, str], ...]]:
  """Returns the last message, which is the user's, and the messages before it.

  A text is one message, unless it is a list of messages in JSON, as files without lists have it.

  Raises:
    RowError: another type, or the last message is not the user's.
  """
  column_value = prompt
  if isinstance(prompt, str):
    prompt = (_from_json(prompt) if MESSAGES_AS_TEXT.match(prompt)
              else [{"role": "user", "content": prompt}])
  is_messages = isinstance(prompt, list) and prompt and all(isinstance(m, dict) for m in prompt)
  if not is_messages or prompt[-1].get("role", "user") != "user":
    raise RowError(
        f"column 'prompt' holds {shorten(column_value)}; a text, or a list of messages that "
                   "ends with the user's was expected")
  before = tuple(role_and_content(number, message) for number, message in enumerate(prompt[:-1], 1))
  return role_and_content(len(prompt), {"role": "user", **prompt[-1]})[1], before


def role_and_content(number: int, message: dict) -> tuple[str, str]:
  """Returns (role, content) of a message. A system message may be empty, which is not the same as
  none: templates insert their own where there is none.
  """
  try:
    role = text(message, "role")
    empty = role == "system" and message.get("content") == ""
    return role, "" if empty else text(message, "content")
  except RowError as error:
    raise RowError(f"column 'prompt', message {number}: "
                   f"{str(error).replace('column ', '')}") from error


def prompt_and_context(row: dict, column: str) -> tuple[str, tuple[tuple[str, str], ...]]:
  """Returns the text of a column and no context or, of a list of messages, the user's last one and
  the messages before it.
  """
  value = get_column(row, column)
  if not is_messages(value):
    return text(row, column), ()
  last = max(i for i, message in enumerate(value) if message.get("role") == "user")
  return split_messages(value[:last + 1])


def get_demonstration(row: dict, column: str) -> str:
  """Returns the demonstration in a column: its text, its number, or the message that follows the
  user's last one.
  """
  value = get_column(row, column)
  if is_messages(value):
    if value[-1].get("role") == "user":
      raise RowError(f"column {column!r} ends with the user's message; one of the assistant was "
                     "expected after it, as the demonstration")
    return role_and_content(len(value), value[-1])[1]
  return text(row, column) if isinstance(value, str) else scalar(row, column)


def shorten(value) -> str:
  """Returns a value as Python writes it, at most 60 characters of it."""
  text = repr(value)
  return text if len(text) <= 60 else text[:57] + "..."
