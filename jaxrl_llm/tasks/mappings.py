"""Columns and answer rules of well-known data sets: one function per schema, row to `Fields`.

Source of the columns: the data sets' own cards and files. Licences differ between the sets; none of
their text is part of this package.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable

from jaxrl_llm.grading.comparisons import with_tolerance
from jaxrl_llm.grading.extraction import last_boxed
from jaxrl_llm.grading.quantities import quantity
from jaxrl_llm.registry import MAPPINGS, Entry
from jaxrl_llm.tasks.data import AUTO, DataConfig
from jaxrl_llm.tasks.rows import (
    RowError,
    boxed,
    first_of,
    get_column,
    get_demonstration,
    get_entry,
    leaves,
    optional,
    prompt_and_context,
    scalar,
    shorten,
    split_messages,
    text,
)

CALCULATOR_MARK = re.compile(r"<<[^<>]*>>")


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
    unique: whether ids are from task.data.id_column, where none may occur twice.
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
          f"{self.where} returned {shorten(fields)}, a {type(fields).__name__}; a Fields "
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
  prompt, context = split_messages(get_column(row, "prompt"))
  if "reward_model" in row:
    answer = get_entry(row, "reward_model", "ground_truth")
  else:
    answer = scalar(row, first_of(row, "solution", "answer"))
  try:
    name = get_entry(row, "extra_info", "index")
  except RowError:
    name = hashlib.sha1(prompt.encode()).hexdigest()[:16]
  return Fields(prompt, answer, id=name, context=context)


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
  answers = get_column(row, "final_answer")
  if not isinstance(answers, list) or not answers or not isinstance(answers[0], str):
    raise RowError(f"column 'final_answer' holds {shorten(answers)}; a list of texts was expected")
  plain = [str(answer).strip().strip("$").strip() for answer in answers]
  if any(answer in ("", "NaN", "nan") for answer in plain):
    raise RowError(f"column 'final_answer' holds {shorten(answers)}; an empty or missing answer")
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
    prompt, context = cell(row, "prompt_column", prompt_and_context)
    demonstration = (cell(row, "demonstration_column", get_demonstration)
                     if cfg.demonstration_column else None)
    return Fields(prompt, cell(row, "answer_column", scalar), demonstration, name, context)

  return Mapping(columns, unique=bool(cfg.id_column))
