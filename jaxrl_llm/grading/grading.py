"""The verdict on a completion: cheap comparisons first, algebra in a worker process last.

`judge` may end in a `Question`, which a worker decides with math-verify (grading/verifier_pool.py).
The answer is located in grading/extraction.py, numbers with units are read in
grading/quantities.py, formulas get one spelling in grading/latex.py and are compared in
grading/comparisons.py.
"""

import re

import numpy as np

from jaxrl_llm.grading import inequalities, latex, wordnumbers
from jaxrl_llm.grading.comparisons import Question, Verdict, compare, question, without_label
from jaxrl_llm.grading.conclusions import concluded, last_concluded, worded
from jaxrl_llm.grading.corrections import corrected, is_withdrawn
from jaxrl_llm.grading.extraction import (
  after_thinking,
  answer_boxes,
  answer_text,
  answer_words,
  boxes,
  last_boxed,
)
from jaxrl_llm.grading.latex import normalize
from jaxrl_llm.grading.letters import letter
from jaxrl_llm.grading.marks import unmarked
from jaxrl_llm.grading.numerals import readable
from jaxrl_llm.grading.parts import contradicts, unsolved
from jaxrl_llm.grading.quantities import (
  Quantity,
  equal,
  last_number,
  quantity,
)
from jaxrl_llm.registry import VERIFIERS

__all__ = ["KINDS", "Question", "Verdict", "after_thinking", "answer_key", "judge", "last_boxed",
           "last_number", "letter", "normalize", "register"]

KINDS = ("exact", "numeric", "math", "choice")
NO_ANSWER = "no answer"  # unscored: the problem has none
LONGEST = 1000  # characters; a longer answer, also longer than four times the gold, is wrong


def register(name: str, *, replace: bool = False):
  """Returns a decorator that enters a verifier: `(text, answer) -> bool` or `Verdict`.

  Args:
    name: value of `task.data.verifier`, or of a mapping's `verifier`.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.

  Raises:
    ValueError: the name is taken.
  """
  return VERIFIERS.register(name, replace=replace)


def judge(kind: str, completion: str, answer: str) -> Verdict | Question:
  """Returns the verdict on one completion, or the question that is left for a worker.

  All kinds read the text after the thinking block. They compare

    exact    the box's content, or without a box the full text, up to white space.
    numeric  the box, which must be a number with at most a unit, or is left to algebra. Without a
             box, the number that the statement after the last mark of an answer ("####",
             "answer:") concludes, else the one of the last sentence with a number; see
             `conclusions.concluded`. 5% is 5 and 0.05; see `quantities.equal`.
    choice   a letter A to J; see `letters.letter`.
    math     the last box, or all boxes if the gold has as many answers; there must be one. As
             strings, as numbers with units, as words, then by algebra.

  Several answers where the gold is one are a hedge, and wrong. A last box that never closes is the
  last answer, which cannot be read.

  A verifier of a plugin gets the same text and the answer, without white space around it.

  Raises:
    ValueError: unknown kind.
  """
  if kind not in VERIFIERS:
    raise ValueError(f"verifier kind {kind!r} is unknown; allowed are {', '.join(VERIFIERS)}.")
  gold = _gold(answer or "") if kind in ("numeric", "math", "choice") else (answer or "").strip()
  if not gold:
    return Verdict(False, "none", NO_ANSWER)
  text = after_thinking(completion)
  if kind in KINDS:
    return VERIFIERS[kind].function(text, gold)
  return _plugin_verdict(kind, text, gold)


def _plugin_verdict(kind: str, text: str, gold: str) -> Verdict:
  """Returns the verdict of a verifier from a plugin, whose failure leaves the row unscored."""
  entry = VERIFIERS[kind]
  try:
    verdict = entry.function(text, gold)
  except Exception as error:
    return Verdict(False, "none", f"crash: {entry.where}: {type(error).__name__}: {error}")
  if isinstance(verdict, Verdict):
    return verdict
  if not isinstance(verdict, (bool, np.bool_)):
    return Verdict(False, "none", f"crash: {entry.where} returned {verdict!r}; True or False was "
                   "expected")
  return Verdict(bool(verdict), "own")


def answer_key(completion: str, kind: str | None = None) -> str | None:
  """Returns a text that is the same for equal answers, for votes and counts of distinct answers.

  Args:
    kind: exact, numeric, choice and math take what `judge` compares. None takes the box, else the
      text after the last `####`, else after the last `=`, else all of the text, without white
      space.

  Returns:
    None if there is no answer. Answers that only algebra finds equal have different keys.
  """
  text = after_thinking(completion)
  box = last_boxed(text)
  kind = kind if kind in KINDS else None  # a plugin's kind of comparison is unknown
  if kind == "choice":
    return letter(text)
  if kind == "numeric":
    number = _stated(text) if box is None else _number_in_box(box)
    if number is not None:
      return str(number.value)
  if kind in ("math", "numeric") or (kind is None and box is not None):
    plain = normalize((box or "")[:LONGEST])
    number = quantity((box or "")[:LONGEST])
    return None if not plain else plain if number is None else str(number.value)
  if kind is None:
    text = text.rsplit("####", 1)[-1].rsplit("=", 1)[-1]
    return "".join(text.split()) or None
  return " ".join((text if box is None else box).split()) or None


@register("exact")
def _exact(text: str, gold: str) -> Verdict:
  contents = answer_boxes(text)
  answer = " ".join((", ".join(_distinct(contents)) if contents else text).split())
  return Verdict(answer == " ".join(gold.split()), "string" if answer else "missing")


@register("numeric")
def _numeric(text: str, gold: str) -> Verdict | Question:
  expected = quantity(gold)
  if expected is None:
    return Verdict(False, "none", f"the answer {gold[:40]!r} is not one number")
  contents = _distinct(answer_boxes(text))
  values = [_number_in_box(box) for box in contents] if contents else [_stated(text)]
  if contents and is_withdrawn(text, values[-1]):
    return Verdict(False, "missing")
  if len(contents) > 1 or values[0] is not None:
    return Verdict(all(value and equal(expected, value) for value in values), "number")
  if not contents or not contents[0]:
    return Verdict(False, "missing")
  box = contents[0]
  return Verdict(False, "length") if len(box) > LONGEST else question(gold, box)


@register("choice")
def _choice(text: str, gold: str) -> Verdict:
  expected = re.fullmatch(r"\(?([A-Ja-j])[.)]?", gold.strip())
  if expected is None:
    return Verdict(False, "none", f"the answer {gold[:40]!r} is no letter from A to J")
  answer = letter(text)
  return Verdict(answer == expected[1].upper(), "missing" if answer is None else "letter")


@register("math")
def _math(text: str, gold: str) -> Verdict | Question:
  answer = _boxed_answer(text, gold)
  if not answer or is_withdrawn(text, quantity(answer[:LONGEST])):
    return Verdict(False, "missing")
  if len(answer) > max(LONGEST, 4 * len(gold)):
    return Verdict(False, "length")
  return compare(gold, answer)


def _boxed_answer(text: str, gold: str) -> str | None:
  r"""Returns the last box, or boxes as a list where the gold has as many answers.

  Boxes that are joined, "\boxed{5} or \boxed{6}", are a list in any case.
  """
  contents = boxes(text)
  if not contents:
    return None
  count = len(latex.list_parts(gold))
  if count > 1 and len(contents) == count and len(latex.list_parts(contents[-1])) == 1:
    return ", ".join(contents)
  return ", ".join(_distinct(answer_boxes(text)))


def _distinct(contents: list[str]) -> list[str]:
  """Returns the contents of boxes in order, each once."""
  return [*{normalize(content[:LONGEST]): content for content in contents}.values()]


def _number_in_box(box: str) -> Quantity | None:
  """Returns the number that a box is, also as `x = 5`."""
  box = box[:LONGEST + 1]
  number = quantity(wordnumbers.in_digits(without_label(box)))
  if number is not None:
    return number
  lhs, sign, rhs = box.rpartition("=")
  listed = re.search(r"[,;]", lhs) or inequalities.AND.search(lhs)
  if sign and not (listed or unsolved(lhs) or contradicts(box)):
    number = quantity(rhs)
  return worded(box) if number is None and r"\text" in box else number


def _stated(text: str) -> Quantity | None:
  """Returns the number that a text without a box states as its answer."""
  text = readable(unmarked(text))
  if not re.search(r"\d", text):
    text = wordnumbers.written_in_digits(text)
  statement = answer_text(text)
  if statement is None:
    return last_concluded(text)
  if not statement:
    return quantity(wordnumbers.in_digits(answer_words(text)))
  return corrected(statement) or concluded(statement)


def _gold(answer: str) -> str:
  """Returns an answer without its box; the parts of a written list ['1', '2'] with commas."""
  text = str(answer).strip()
  if re.fullmatch(r"\[\s*(['\"]).*\1\s*\]", text, re.DOTALL):
    parts = [part for _, part in re.findall(r"(['\"])(.*?)\1(?=\s*[,\]])", text, re.DOTALL)]
    text = ", ".join(parts).replace("\\\\", "\\")
  box = last_boxed(text)
  text = text if box is None else box
  return re.sub(r"(?<!\\)\$", "", text).strip()
