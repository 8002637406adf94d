"""Columns and answer rules of well-known data sets: one function per schema, row to `Fields`.

Source of the columns: the data sets' own cards and files. Licences differ between the sets; none of
their text is part of this package.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable

from jaxrl_llm.grading.comparisons import with_tolerance
from jaxrl_llm.grading.extraction import last_boxed
from jaxrl_llm.grading.quantities import quantity
from jaxrl_llm.registry import MAPPINGS, Entry
from jaxrl_llm.tasks.data import AUTO, DataConfig

CALCULATOR_MARK = re.compile(r"<<[^<>]*>>")
# How a list of messages begins that was written as text, by JSON or by Python.
MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:""")
SURROGATE = re.compile("[\ud800-\udfff]")


class RowError(ValueError):
  """Says what is wrong with a row; the reader of the file adds the place."""


@dataclasses.dataclass(frozen=True)
class Fields:
  """The fields of a data set's row that a task uses. Without an id, the row number is the id.

  Attributes:
    context: messages before the prompt, as (role, content): the row's own system message.
  """

  prompt: str
  answer: str
  demonstration: str | None = None
  id: str | None = None
  context: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Mapping(Entry):
  """A function from the rows of one schema to problems.

  Attributes:
    function: from a row to `Fields`; raises RowError.
    verifier: kind of answer check.
    repeats: whether a row with the text of an earlier one is dropped.
    unique: whether ids are those of task.data.id_column, of which none may occur twice.
  """

  verifier: str = "math"
  repeats: bool = False
  unique: bool = False

  def convert(self, row: dict) -> Fields:
    """Returns what a task needs of a row.

    Raises:
      RowError: the row does not fit, or the function fails.
    """
    try:
      fields = self.function(row)
    except RowError:
      raise
    except (Exception, SystemExit) as error:
      raise RowError(f"{self.where}: {type(error).__name__}: {error}") from error
    if not isinstance(fields, Fields):
      raise RowError(
          f"{self.where} returned {_shorten(fields)}, a {type(fields).__name__}; a Fields "
                     "was expected")
    return fields


def register(name: str, *, verifier: str = "math", repeats: bool = False, replace: bool = False):
  """Returns a decorator that enters a function from a row to `Fields` as a mapping.

  Args:
    name: value of `task.data.mapping`.
    verifier, repeats: see `Mapping`.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.

  Raises:
    ValueError: the name is taken.
  """
  def make(function: Callable[[dict], Fields], numbers: type) -> Mapping:
    return Mapping(function, numbers, verifier, repeats)

  return MAPPINGS.register(name, replace=replace, make=make)


def text(row: dict, column: str) -> str:
  """Returns a non-empty text.

  Raises:
    RowError: no such column, another type, nothing in it, or what `check_text` refuses.
  """
  value = _get(row, column)
  if not isinstance(value, str):
    raise RowError(
        f"column {column!r} holds {_shorten(value)}, a {type(value).__name__}; a text was expected")
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
    raise RowError(f"{name} holds a list of messages as text, {_shorten(value)}; the mapping dapo "
                   "reads one in the column 'prompt'")
  return value


def scalar(row: dict, column: str) -> str:
  """Returns a text or a number as text; a whole float loses its point (27.0 -> 27).

  Raises:
    RowError: no such column, another type, nothing in it, or no finite number.
  """
  value = _get(row, column)
  if (isinstance(value, float) and not math.isfinite(value)) or value in ("NaN", "nan"):
    raise RowError(f"column {column!r} holds {value}; an answer was expected")
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  if isinstance(value, bool) or not isinstance(value, (str, int, float)):
    raise RowError(
        f"column {column!r} holds {_shorten(value)}, a {type(value).__name__}; "
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


def leaves(row: dict) -> dict:
  """Returns {column: value} of a row; a value inside an object has its path, such as meta.answer.
  """
  values = {}
  for name, value in row.items():
    inner = leaves(value) if isinstance(value, dict) else {}
    values |= {f"{name}.{key}": leaf for key, leaf in inner.items()} or {str(name): value}
  return values


def is_messages(value) -> bool:
  """Returns whether a value is a list of messages that has one of the user."""
  return (isinstance(value, list) and bool(value)
          and all(isinstance(message, dict) and "content" in message for message in value)
          and any(message.get("role") == "user" for message in value))


def _get(row: dict, column: str):
  if column in row:
    return row[column]
  values = leaves(row)
  if column not in values:
    raise RowError(f"no column {column!r}; columns present: {', '.join(values) or 'none'}")
  return values[column]


def _shorten(value) -> str:
  text = repr(value)
  return text if len(text) <= 60 else text[:57] + "..."


@register("gsm8k", verifier="numeric")
def _gsm8k(row: dict) -> Fields:
  """Takes the number after the last ####, and the rationale without its calculator marks."""
  question, answer = text(row, "question"), CALCULATOR_MARK.sub("", text(row, "answer"))
  rationale, mark, gold = answer.rpartition("####")
  gold = gold.replace(",", "").strip()
  if not mark or not gold:
    raise RowError("column 'answer' has no #### with a number after it")
  return Fields(question, gold, f"{rationale.strip()}\n#### {gold}".lstrip())


@register("math", verifier="math")
def _math(row: dict) -> Fields:
  """Takes the column `answer`, or else the last box of the solution (MATH and MATH-500)."""
  solution = optional(row, "solution")
  if row.get("answer") is None and solution is None:
    raise RowError(
        f"neither column 'answer' nor 'solution'; columns present: {', '.join(row) or 'none'}")
  answer = boxed(solution) if row.get("answer") is None else scalar(row, "answer")
  return Fields(text(row, "problem"), answer, solution, optional(row, "unique_id"))


@register("deepscaler", verifier="math")
def _deepscaler(row: dict) -> Fields:
  return Fields(text(row, "problem"), scalar(row, "answer"), optional(row, "solution"))


@register("dapo", verifier="numeric", repeats=True)
def _dapo(row: dict) -> Fields:
  """Reads verl's layout, whose user message already has the format instruction, and DAPO's
  processed one, whose prompt is a text. The index of a row restarts in each source, so that it is
  no more than a name; without one the prompt names the row.
  """
  prompt, context = _messages(_get(row, "prompt"))
  if "reward_model" in row:
    answer = _inside(row, "reward_model", "ground_truth")
  else:
    answer = scalar(row, first_of(row, "solution", "answer"))
  try:
    name = _inside(row, "extra_info", "index")
  except RowError:
    name = hashlib.sha1(prompt.encode()).hexdigest()[:16]
  return Fields(prompt, answer, id=name, context=context)


def _inside(row: dict, column: str, name: str) -> str:
  """Returns an entry of an object, which may be written as the text of a JSON object."""
  value = _get(row, column)
  if isinstance(value, str):
    value = _from_json(value)
  if not isinstance(value, dict):
    raise RowError(f"column {column!r} holds {_shorten(row[column])}; an object was expected")
  try:
    return scalar(value, name)
  except RowError as error:
    raise RowError(f"column {column!r}: {error}") from error


def _from_json(value: str):
  """Returns what a text holds as JSON; None if it is no JSON."""
  try:
    return json.loads(value)
  except (ValueError, RecursionError):
    return None


def _messages(prompt) -> tuple[str, tuple[tuple[str, str], ...]]:
  """Returns the last message, which is the user's, and those before it.

  A text is one message, unless it is a list of messages in JSON, as files without lists have it.
  """
  column_value = prompt
  if isinstance(prompt, str):
    prompt = (_from_json(prompt) if MESSAGES_AS_TEXT.match(prompt)
              else [{"role": "user", "content": prompt}])
  is_messages = isinstance(prompt, list) and prompt and all(isinstance(m, dict) for m in prompt)
  if not is_messages or prompt[-1].get("role", "user") != "user":
    raise RowError(
        f"column 'prompt' holds {_shorten(column_value)}; a text, or a list of messages that "
                   "ends with the user's was expected")
  before = tuple(_message(number, message) for number, message in enumerate(prompt[:-1], 1))
  return _message(len(prompt), {"role": "user", **prompt[-1]})[1], before


def _message(number: int, message: dict) -> tuple[str, str]:
  """Returns (role, content) of a message. A system message may be empty, which is not the same as
  none: templates put one of their own where there is none.
  """
  try:
    role = text(message, "role")
    empty = role == "system" and message.get("content") == ""
    return role, "" if empty else text(message, "content")
  except RowError as error:
    raise RowError(f"column 'prompt', message {number}: "
                   f"{str(error).replace('column ', '')}") from error


@register("aime", verifier="numeric")
def _aime(row: dict) -> Fields:
  """Takes integers from 0 to 999: a column `answer`, or else the last box of the solution."""
  names = [str(name).lower() for name in row]
  column = first_of(row, "answer") if "answer" in names else first_of(row, "solution")
  answer = scalar(row, column) if "answer" in names else boxed(text(row, column))
  number = quantity(last_boxed(answer) or answer)
  is_integer = number is not None and not number.percent and number.value.denominator == 1
  if not is_integer or not 0 <= number.value <= 999:
    raise RowError(f"column {column!r} holds {answer!r}; an integer from 0 to 999 was expected")
  return Fields(text(row, first_of(row, "problem", "question")), str(number.value))


@register("amc23", verifier="numeric")
def _amc23(row: dict) -> Fields:
  """Takes answers that are written as floats."""
  answer = scalar(row, "answer")
  try:
    value = float(answer)
  except ValueError as error:
    raise RowError(f"column 'answer' holds {answer!r}; a number was expected") from error
  question = text(row, first_of(row, "problem", "question"))
  return Fields(question, str(int(value)) if value.is_integer() else answer)


@register("minerva", verifier="math")
def _minerva(row: dict) -> Fields:
  """Takes the column `answer`, or else the last box of the solution."""
  question, solution = text(row, first_of(row, "problem", "question")), optional(row, "solution")
  if solution is None or row.get("answer") is not None:
    return Fields(question, scalar(row, "answer"), solution)
  return Fields(question, boxed(solution), solution)


@register("olympiadbench", verifier="math")
def _olympiadbench(row: dict) -> Fields:
  """Takes all of `final_answer`, or the first if the row says that there is one; with the unit of
  a single answer, and the tolerance in `error`.
  """
  answers = _get(row, "final_answer")
  if not isinstance(answers, list) or not answers or not isinstance(answers[0], str):
    raise RowError(f"column 'final_answer' holds {_shorten(answers)}; a list of texts was expected")
  plain = [str(answer).strip().strip("$").strip() for answer in answers]
  if any(answer in ("", "NaN", "nan") for answer in plain):
    raise RowError(f"column 'final_answer' holds {_shorten(answers)}; an empty or missing answer")
  plain = plain[:1] if row.get("is_multiple_answer") is False else plain
  answer, unit = ", ".join(plain), optional(row, "unit")
  if unit and len(plain) == 1 and quantity(answer) is not None:
    unit = unit.strip().strip("$")
    answer += unit if "\\" in unit else rf"\text{{ {unit}}}"
  if tolerance := optional(row, "error"):
    answer = _tolerant(answer, tolerance)
  return Fields(text(row, "question"), answer)


def _tolerant(answer: str, tolerance: str) -> str:
  """Returns the answer with a tolerance that holds for all of its parts."""
  tolerances = {part.strip() for part in tolerance.split(",")}
  try:
    return with_tolerance(answer, max(float(part) for part in tolerances))
  except ValueError as error:
    raise RowError(f"column 'error' holds {tolerance!r}; numbers were expected") from error


def make_mapping(cfg: DataConfig) -> Mapping:
  """Returns the mapping that `cfg.mapping` names; auto: one over the configured columns.

  Raises:
    ConfigError: an unknown name.
  """
  if cfg.mapping != AUTO:
    return MAPPINGS[cfg.mapping]

  def cell(row: dict, key: str, convert: Callable):
    column = getattr(cfg, key)
    if column in row or column in leaves(row):
      return convert(row, column)
    raise RowError(f"no column {column!r}; columns present: {', '.join(leaves(row)) or 'none'}; "
                   f"task.data.{key} asks for it")

  def columns(row: dict) -> Fields:
    name = cell(row, "id_column", scalar) if cfg.id_column else None
    prompt, context = cell(row, "prompt_column", _prompt_and_context)
    demonstration = (cell(row, "demonstration_column", _demonstration)
                     if cfg.demonstration_column else None)
    return Fields(prompt, cell(row, "answer_column", scalar), demonstration, name, context)

  return Mapping(columns, unique=bool(cfg.id_column))


def _prompt_and_context(row: dict, column: str) -> tuple[str, tuple[tuple[str, str], ...]]:
  """Returns the text of a column and no context or, of a list of messages, the user's last one and
  those before it.
  """
  value = _get(row, column)
  if not is_messages(value):
    return text(row, column), ()
  last = max(i for i, message in enumerate(value) if message.get("role") == "user")
  return _messages(value[:last + 1])


def _demonstration(row: dict, column: str) -> str:
  """Returns the demonstration in a column: its text, its number, or the message that follows the
  user's last one.
  """
  value = _get(row, column)
  if is_messages(value):
    if value[-1].get("role") == "user":
      raise RowError(f"column {column!r} ends with the user's message; one of the assistant was "
                     "expected after it, as the demonstration")
    return _message(len(value), value[-1])[1]
  return text(row, column) if isinstance(value, str) else scalar(row, column)
