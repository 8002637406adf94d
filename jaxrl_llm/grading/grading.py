"""The verdict on a completion, or a `Question` for math-verify (grading/verifier_pool.py)."""

import re

import numpy as np

from jaxrl_llm.grading import extraction, latex, statements
from jaxrl_llm.grading.comparisons import Verdict, compare
from jaxrl_llm.grading.extraction import answer_boxes, last_boxed
from jaxrl_llm.grading.formulas import Question, bounds
from jaxrl_llm.grading.latex import normalize
from jaxrl_llm.grading.letters import letter
from jaxrl_llm.grading.normalise import after_thinking, readable, unmarked, written
from jaxrl_llm.grading.quantities import Quantity, equal, quantity
from jaxrl_llm.registry import VERIFIERS

__all__ = ["KINDS", "Question", "Verdict", "after_thinking", "answer_key", "judge", "last_boxed",
           "letter", "normalize", "register"]

KINDS = ("exact", "numeric", "math", "strict", "choice")
NO_ANSWER = "no answer"  # unscored: the problem has none
LONGEST = 1000  # characters; a longer answer, also longer than four times the gold, is wrong
MISSING = Verdict(False, "missing")


def register(name: str, *, replace: bool = False):
  """Returns a decorator that enters a verifier: `(text, answer) -> bool` or `Verdict`.

  Args:
    name: value of `task.data.verifier`, or of a mapping's `verifier`; a ValueError if it is taken.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
  """
  return VERIFIERS.register(name, replace=replace)


def judge(kind: str, completion: str, answer: str) -> Verdict | Question:
  """Returns the verdict on one completion, or the question that is left for a worker.

  All kinds, and a plugin's verifiers, read `normalise.written`. They compare

    exact    the box's content, or without a box the full text, up to white space.
    math     the box; else what follows the last mark ("####", "answer is"); else the last number or
             formula of the last sentence. As strings, numbers with units, words, then by algebra.
    strict   as math, without the last sentence.
    numeric  as math, where the answer is one number.
    choice   a letter A to J; see `letters.letter`.

  Several answers where the gold is one are a hedge, and wrong. A last box that never closes is the
  last answer, which cannot be read.

  Raises:
    ValueError: unknown kind.
  """
  if kind not in VERIFIERS:
    raise ValueError(f"verifier kind {kind!r} is unknown; allowed are {', '.join(VERIFIERS)}.")
  gold = written(str(answer or "")).strip()
  gold = _unboxed(gold) if kind in KINDS and kind != "exact" else gold
  if not gold:
    return Verdict(False, "none", NO_ANSWER)
  text = written(completion)
  if kind in KINDS:
    return VERIFIERS[kind].function(text, gold)
  return _plugin_verdict(kind, text, gold)


def unmet(kind: str, gold: str) -> str | None:
  """Returns why no completion could be right for a gold answer; None where one could.

  A built-in kind is tried with the answer that the gold states, as a model would write it: the last
  box, what follows a mark such as "####", the number that ends lines of prose, or else all of it.
  """
  verdict = judge(kind, "", gold)  # an empty completion is wrong, unless the gold is at fault
  if isinstance(verdict, Question) or verdict.unscored_reason or kind not in KINDS:
    return None if isinstance(verdict, Question) else verdict.unscored_reason
  final = _final(kind, gold)
  verdict = judge(kind, final if kind == "exact" else rf"\boxed{{{final}}}", gold)
  wrong = isinstance(verdict, Verdict) and not verdict.correct
  return f"the answer {final[:40]!r} would be wrong" if wrong else None


def _final(kind: str, gold: str) -> str:
  """Returns the answer that a gold states; see `unmet`."""
  box, statement = last_boxed(gold), extraction.marked(gold)
  if box is not None:
    return box
  if statement is not None and (kind != "exact" or re.search("####|<answer>", gold)):
    return unmarked(statement.split("\n")[0]).strip()
  before, _, _ = gold.strip().rpartition("\n")
  number = _stated_number(gold) if _PROSE.search(before) and kind != "exact" else None
  return str(number.value) if number else gold


def _plugin_verdict(kind: str, text: str, gold: str) -> Verdict:
  """Returns the verdict of a verifier from a plugin, whose failure leaves the row unscored."""
  entry = VERIFIERS[kind]
  try:
    verdict = entry.function(text, gold)
  except (Exception, SystemExit) as error:
    return Verdict(False, "none", f"crash: {entry.where}: {type(error).__name__}: {error}")
  if isinstance(verdict, Verdict):
    return verdict
  if not isinstance(verdict, (bool, np.bool_)):
    return Verdict(False, "none", f"crash: {entry.where} returned {verdict!r}; True or False was "
                   "expected")
  return Verdict(bool(verdict), "own")


@register("exact")
def _exact(text: str, gold: str) -> Verdict:
  contents = _distinct(answer_boxes(text))
  answer = " ".join(readable(", ".join(contents) if contents else text).split())
  return Verdict(answer == " ".join(readable(gold).split()), "string" if answer else "missing")


@register("choice")
def _choice(text: str, gold: str) -> Verdict:
  letter_match = re.fullmatch(r"\(?([A-Ja-j])[.)]?", gold)
  if letter_match is None:
    return Verdict(False, "none", f"the answer {gold[:40]!r} is no letter from A to J")
  answer = letter(text)
  return Verdict(answer == letter_match[1].upper(), "missing" if answer is None else "letter")


@register("numeric")
def _numeric(text: str, gold: str) -> Verdict | Question:
  if quantity(gold) is None:
    return Verdict(False, "none", f"the answer {gold[:40]!r} is not one number")
  return _math(text, gold)


@register("strict")
def _strict(text: str, gold: str) -> Verdict | Question:
  has_mark = extraction.box_spans(text) or extraction.marked(text) is not None
  return _math(text, gold) if has_mark else MISSING


@register("math")
def _math(text: str, gold: str) -> Verdict | Question:
  gold_value, answer = quantity(gold), _boxed_answer(text, gold)
  if answer is not None:
    number = _number_in_box(answer)
    if not answer or _is_withdrawn(text, number):
      return MISSING
  else:
    number = _stated_number(text)
    answer = "" if gold_value else _stated_formula(text)
  if gold_value and number:
    return Verdict(equal(gold_value, number), "number")
  if len(answer) > max(LONGEST, 4 * len(gold)):
    return Verdict(False, "length")
  return compare(gold, answer) if answer else MISSING


def _boxed_answer(text: str, gold: str) -> str | None:
  r"""Returns the last box, or boxes as a list where the gold has as many answers.

  Boxes that are joined, "\boxed{5} or \boxed{6}", are a list in any case.
  """
  contents = [span.content or "" for span in extraction.box_spans(text)]
  if not contents:
    return None
  count = len(latex.list_parts(gold))
  if count > 1 and len(contents) == count and len(latex.list_parts(contents[-1])) == 1:
    return ", ".join(contents)
  return ", ".join(_distinct(answer_boxes(text)))


def _number_in_box(box: str) -> Quantity | None:
  r"""Returns the number that a box is, or that its sentence concludes: \text{Tom has 15 apples}."""
  number, plain = quantity(box[:LONGEST]), unmarked(readable(box[:LONGEST]))
  if number is None and r"\text" in box and re.fullmatch(r"[\w\s,.'!-]*", plain):
    number = None if bounds(box) else statements.concluded(plain)
  return number


def _stated_number(text: str) -> Quantity | None:
  """Returns the number that a text without a box states after a mark, or in its last sentence."""
  statement = extraction.marked(text)
  plain = unmarked(readable(text if statement is None else statement))
  if statement is None:
    candidates = statements.sentences(extraction.last_line(plain))
    plain = next((part for part in reversed(candidates) if re.search(r"\d", part)), "")
  return statements.concluded(plain)


def _stated_formula(text: str) -> str:
  """Returns the formula or the words that a text without a box states, empty without any."""
  statement = extraction.marked(text)
  formula = text if statement is None else statement.split("\n")[0]
  if formulas := extraction.formulas(formula):
    return ", ".join(_distinct(formulas))
  return extraction.last_line(unmarked(readable(formula)))


def _is_withdrawn(text: str, boxed: Quantity | None) -> bool:
  """Returns whether the text around the last box denies it, or corrects it to another number."""
  last = extraction.box_spans(text)[-1]
  behind = readable(text[last.end:last.end + extraction.LONGEST])
  if _REFUSED.match(behind) or _DENIED.search(text, 0, last.start):
    return True
  cue = statements.CORRECTION.search(text[last.end - 1:last.end] + behind)
  number = statements.concluded(unmarked(behind)) if cue else None
  return number is not None and (boxed is None or not equal(boxed, number))


def _distinct(contents: list[str]) -> list[str]:
  """Returns the contents of boxes in order, each once."""
  return [*{normalize(content[:LONGEST]): content for content in contents}.values()]


def answer_key(completion: str, kind: str | None = None) -> str | None:
  """Returns a text that is the same for equal answers, for votes and counts of distinct answers.

  Args:
    kind: exact, numeric, choice, strict and math take what `judge` compares. None takes the box,
      else the text after the last `####`, else after the last `=`, else all, without white space.

  Returns:
    None if there is no answer. Answers that only algebra finds equal have different keys.
  """
  text = written(completion)
  box = last_boxed(text)
  if kind == "choice":
    return letter(text)
  if kind == "exact":
    return " ".join((text if box is None else box).split()) or None
  if box is None and kind not in KINDS:
    text = text.rsplit("####", 1)[-1].rsplit("=", 1)[-1]
    return "".join(text.split()) or None
  number = _stated_number(text) if box is None else quantity(box[:LONGEST])
  return str(number.value) if number else normalize((box or "")[:LONGEST]) or None


def _unboxed(answer: str) -> str:
  """Returns an answer without its box; the parts of a written list ['1', '2'] with commas."""
  if re.fullmatch(r"\[\s*(['\"]).*\1\s*\]", answer, re.DOTALL):
    parts = [part for _, part in re.findall(r"(['\"])(.*?)\1(?=\s*[,\]])", answer, re.DOTALL)]
    answer = ", ".join(parts).replace("\\\\", "\\")
  box = last_boxed(answer)
  return re.sub(r"(?<!\\)\$", "", answer if box is None else box).strip()


_REFUSED = re.compile(r"(?i)[\s$\\)\]*?.]{0,9}(?:(?:this|that|it) )?(?:is|was|must be)"
                      r" (?:clearly |also )?(?:wrong|incorrect|false|not (?:right|correct"
                      r"|the (?:correct |right |final )?answer))\b"
                      r"|[\s$\\)\],]{0,9}or (?:maybe|perhaps|possibly|even)\b[\s$\\(\[]{0,5}-?\d")
_PROSE = re.compile(r"^(?!.*\\begin\b).*[A-Za-z]{2,},? [A-Za-z]{2,}", re.DOTALL)
_DENIED = re.compile(r"\b(?:is not|isn['’]t|cannot be|can['’]t be|not equal to)[\s$\\(\[*]{0,6}\Z")
