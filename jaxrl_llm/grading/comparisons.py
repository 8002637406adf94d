"""Whether an answer equals the gold: as a string, a label, a ratio, a number, words, or by algebra.

`compare` decides what it can, and leaves the rest as a `Question` for math-verify.
"""

import dataclasses
import re
from fractions import Fraction

from jaxrl_llm.grading import latex, letters
from jaxrl_llm.grading.formulas import Question, question
from jaxrl_llm.grading.latex import list_parts, normalize
from jaxrl_llm.grading.quantities import equal, known_unit, quantity


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The verdict on an answer: whether it is right, and the rung of the comparison that decided it.

  Attributes:
    correct: also False if no verdict exists.
    rung: "missing" (nothing to compare), "string", "number", "letter", "length", "algebra", "own"
      (a plugin's verifier), "costly" (wrong, because checking it would take without end), or "none"
      if unscored.
    unscored_reason: why no verdict exists ("timeout", "crash: ...", "no answer"), or None.
  """

  correct: bool
  rung: str
  unscored_reason: str | None = None


def with_tolerance(answer: str, tolerance: float) -> str:
  """Returns an answer to which numbers are equal that differ by at most `tolerance`.

  Raises:
    ValueError: it is negative, or not finite.
  """
  if not 0 <= tolerance < float("inf"):
    raise ValueError(f"tolerance = {tolerance}; allowed are finite numbers from 0 on")
  return rf"{answer} \tolerance{{{tolerance:g}}}"


def compare(gold: str, answer: str) -> Verdict | Question:
  """Returns the verdict on two formulas, or the question that is left for algebra.

  Args:
    gold: LaTeX without box, perhaps of `with_tolerance`.
    answer: LaTeX without box. Neither is empty.
  """
  if match := _TOLERANCE.search(gold):
    return _near(gold[:match.start()], answer, float(match[1]))
  if normalize(answer) == normalize(gold):
    return Verdict(True, "string")
  label_match = _LABEL.match(latex.undecorated(gold))
  gold_text = label_match[1] if label_match else normalize(gold).strip("()")
  if re.fullmatch("[A-J]", gold_text):
    label = letters.option(answer)
    if label == letters.HEDGE or (label and label in answer):
      values = [quantity(without_label(text)) for text in (gold, answer)]
      return Verdict(label == gold_text and (None in values or equal(*values)), "letter")
  gold, answer = without_label(gold), _without_remarks(gold, answer)
  for rung in (_ratios, _bases, _quantities, _names):
    if (verdict := rung(gold, answer)) is not None:
      return verdict
  outcome = question(gold, without_label(answer))
  return Verdict(outcome, "string") if isinstance(outcome, bool) else outcome


def without_label(answer: str) -> str:
  """Returns "(B) 12" without its label."""
  match = _LABEL.match(latex.undecorated(answer))
  return match[2] if match else answer


def _near(gold: str, answer: str, tolerance: float) -> Verdict | Question:
  """Compares as `compare` does, but numbers up to a tolerance."""
  verdict = compare(gold, answer)
  if isinstance(verdict, Question):
    return dataclasses.replace(verdict, tolerance=tolerance)
  numbers = [quantity(text) for text in (gold, without_label(answer))]
  if verdict.correct or None in numbers:
    return verdict
  same_unit = equal(numbers[0], dataclasses.replace(numbers[1], value=numbers[0].value))
  distance = abs(numbers[0].value - numbers[1].value)
  return Verdict(same_unit and distance <= Fraction(tolerance) * (1 + SLACK), "number")


def _without_remarks(gold: str, answer: str) -> str:
  r"""Returns an answer without what explains it: \approx 0.69, \pmod{1000}, "(since ...)"."""
  if r"\approx" not in gold and len(list_parts(answer)) == 1:
    answer = _APPROXIMATELY.sub("", answer)
  if "mod" not in gold and (match := _REMAINDER.fullmatch(latex.undecorated(answer))):
    answer = match[1]
  return _REMARK.sub("", _NAMING.sub("", answer)) or answer


def _ratios(gold: str, answer: str) -> Verdict | None:
  """Compares 2:3 with 4:6, and times of the day, whose half counts if both name it."""
  matches = [_RATIO.fullmatch(_phrase(text).replace("to", ":")) for text in (gold, answer)]
  if None in matches:
    return None
  halves = {match[2] for match in matches if match[2]}
  ratios = [[Fraction(part) for part in match[1].split(":")] for match in matches]
  if not halves and 0 not in (ratios[0][0], ratios[1][0]):
    ratios = [[part / ratio[0] for part in ratio] for ratio in ratios]
  return Verdict(len(halves) < 2 and ratios[0] == ratios[1], "number")


def _bases(gold: str, answer: str) -> Verdict | None:
  """Compares numerals with a base: 101_2. A missing base is the other's."""
  pairs = [_BASE.fullmatch(normalize(text)) for text in (gold, answer)]
  if None in pairs or not (pairs[0][2] or pairs[1][2]):
    return None
  same = None in (pairs[0][2], pairs[1][2]) or pairs[0][2] == pairs[1][2]
  return Verdict(same and pairs[0][1].lstrip("0") == pairs[1][1].lstrip("0"), "number")


def _quantities(gold: str, answer: str) -> Verdict | None:
  """Compares numbers with units, and refuses formulas with units that differ."""
  gold_value, value = quantity(gold), quantity(without_label(answer))
  if gold_value is not None and value is not None:
    return Verdict(equal(gold_value, value), "number")
  if gold_value is not None and len(parts := list_parts(answer)) > 1:  # 3/4 or 75%
    values = [quantity(part) for part in parts]
    if all(value is not None and equal(gold_value, value) for value in values):
      return Verdict(True, "number")
  units = [known_unit(match[1] + (match[2] or "")) if match else None
           for match in (_UNIT_BEHIND.search(text) for text in (gold, answer))]
  between = [known_unit(unit) for unit in _UNIT_BETWEEN.findall(gold + answer)]  # 5 ft 6 in
  return Verdict(False, "number") if any(between) or (
      None not in units and units[0] != units[1]) else None


def _names(gold: str, answer: str) -> Verdict | None:
  """Compares words, and refuses variables that differ only in their case."""
  phrase, answer_phrase = _phrase(gold), _phrase(answer)
  if phrase in ("yes", "no", "true", "false"):
    begins = re.match(rf"{phrase}(?:[,;].*)?$", answer_phrase)
    other = re.search(r"[,;](?:or|and|maybe)?(?:yes|no|true|false)(?![a-z])", answer_phrase)
    return Verdict(bool(begins and not other), "string")
  is_phrase = r"\text" in gold or re.fullmatch(r"\s*[A-Za-z]{3,}[A-Za-z\s]*", gold)
  if is_phrase and phrase == answer_phrase:
    return Verdict(True, "string")
  names = [set(_IDENTIFIER.findall(_WORDS.sub(" ", text))) for text in (gold, answer)]
  small = [{name.lower() for name in group} for group in names]
  return Verdict(False, "string") if small[0] == small[1] and names[0] != names[1] else None


def _phrase(text: str) -> str:
  """Returns words and numbers without case, article, spaces and stops."""
  text = re.sub(r"(?i)^((?:\\\w+\s?\{)?)\s*(?:the|an?)\s+", r"\1", text)
  return re.sub(r"\.(?!\d)|['\s]", "", normalize(text).casefold())


SLACK = Fraction(1, 10**9)  # of a tolerance, for its binary form
_TOLERANCE = re.compile(r"\s*\\tolerance\{([^{}]*)\}\s*$")
_LABEL = re.compile(r"(?:\\text(?:bf)?\s?\{)?\s*\(?([A-J])\)\s*\}?\s*[:.]?\s*(?=[^\s,;])(.+)",
                    re.DOTALL)
_RATIO = re.compile(r"(\d+(?:\.\d+)?(?::\d+(?:\.\d+)?)+)([ap]m)?")
_BASE = re.compile(r"(?:(?=\(.*_)\()?([0-9A-F]+)\)?(?:_\{?\(?(?:base)?(\d+|[a-z]+)\)?\}?)?")
_UNIT_BEHIND = re.compile(r"\\(?:text|mathrm)\s?\{([^{}]*)\}\s*(\^\s*\{?\d\}?)?\s*\.?\s*$")
_UNIT_BETWEEN = re.compile(r"\d\s*\\(?:text|mathrm)\s?\{([^{}]*?)\}\s*(?=\d)")
_WORDS = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s?\{[^{}]*\}")
_IDENTIFIER = re.compile(r"\\[a-zA-Z]+|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_REMARK = re.compile(r"(?<=\S)\s*\\text\s?\{\s*\((?:since|because|as|remainder)\b[^()]*\)?\s*\}?.*$"
                     r"|(?<=\S)\s*,?\s*\\text\s?\{\s*,?\s*(?:for|where|with)\b[^{}]*\}[^=]*$")
_REMAINDER = re.compile(r"(?:[A-Za-z]\w*\s*\\equiv\s*)?(.+?)\s*\(?\\pmod\s*\{?\w+\}?\)?")
_NAMING = re.compile(
    r"^\s*\\text\s?\{[^{}\d]*(?:\bis|:|=|(?<=\{)\s*(?:exactly|only))\s*\}\s*(?=\S)")
_APPROXIMATELY = re.compile(r"^\s*(?:[A-Za-z]\s*)?\\approx(?![a-zA-Z])"
                            r"|(?<=\S)\s*\\approx(?![a-zA-Z]).*$", re.DOTALL)
