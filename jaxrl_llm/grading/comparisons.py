r"""The comparisons of two formulas, from cheap to dear; what they leave open is a question.

Order: own derivation; the known pairs are in tests/grading/answer_pairs.jsonl.
"""

import dataclasses
import re
from fractions import Fraction

from jaxrl_llm.grading import (
  congruences,
  dates,
  inequalities,
  latex,
  letters,
  parts,
  units,
  wordnumbers,
)
from jaxrl_llm.grading.conclusions import worded
from jaxrl_llm.grading.latex import normalize
from jaxrl_llm.grading.quantities import Quantity, equal, quantity, total
from jaxrl_llm.grading.variables import (
  kept_variables,
  one_constant,
  one_parameter,
  unindexed,
  unnamed,
)


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


@dataclasses.dataclass(frozen=True)
class Question:
  """Two formulas whose equality needs algebra.

  Attributes:
    gold, prediction: LaTeX, without box. Decimals of the prediction are written as fractions.
    decimals: of a gold that is a decimal with at least three significant digits, which a formula
      equals if it rounds to it; None: equality is exact.
    tolerance: numbers are equal up to it; None: no tolerance was published with the gold.
  """

  gold: str
  prediction: str
  decimals: int | None = None
  tolerance: float | None = None


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

  They are compared as strings, as labels of options, ratios, numerals with a base, numbers with
  units, and words. An undecided pair is a question.

  Args:
    gold: LaTeX without box, perhaps of `with_tolerance`.
    answer: LaTeX without box. Neither is empty.
  """
  if match := _TOLERANCE.search(gold):
    return _near(gold[:match.start()], answer, float(match[1]))
  if normalize(answer) == normalize(gold):
    return Verdict(True, "string")
  answer = parts.last_step(gold, answer)
  gold, answer = _unconditional(gold), _unconditional(_without_remarks(gold, answer))
  if labelled := _LABEL.match(latex.undecorated(gold)):
    if (label := _label(answer)) is not None:
      values = [quantity(text) for text in (labelled[2], without_label(answer))]
      differ = None not in values and not equal(*values)
      return Verdict(label == labelled[1] and not differ, "letter")
    gold = labelled[2]
  gold, answer = wordnumbers.in_digits(gold), wordnumbers.in_digits(answer)
  gold, answer = one_constant(gold, answer)
  for rung in (_labels, _dates, _ratios, _bases, _compounds, _quantities, _names):
    if (verdict := rung(gold, answer)) is not None:
      return verdict
  return question(gold, answer)


def _near(gold: str, answer: str, tolerance: float) -> Verdict | Question:
  """Compares as `compare` does, but numbers up to a tolerance."""
  verdict = compare(gold, answer)
  gold_value, answer_value = quantity(gold), quantity(without_label(answer))
  if isinstance(verdict, Question):
    return dataclasses.replace(verdict, tolerance=tolerance)
  if verdict.correct or gold_value is None or answer_value is None:
    return verdict
  near = dataclasses.replace(answer_value, value=gold_value.value, digits=None)
  distance = abs(gold_value.value - answer_value.value)
  return Verdict(equal(gold_value, near) and distance <= Fraction(tolerance) * (1 + SLACK),
                 "number")


def _labels(gold: str, answer: str) -> Verdict | None:
  """Compares the labels of options, if the gold is one; (B) is the label of "(B) 12"."""
  expected = _LABEL_ALONE.fullmatch(normalize(gold))
  if expected is None:
    return None
  label = _label(answer)
  return None if label is None else Verdict(label == expected[1], "letter")


def _label(text: str) -> str | None:
  """Returns the B of "B", "(B)", "Option B" and "(B) 12"; `letters.HEDGE` of "(B) or (C)"."""
  label = letters.option(text)
  return label if label == letters.HEDGE or (label and label in text) else None


def _dates(gold: str, answer: str) -> Verdict | None:
  """Compares dates, times of the day whose half the gold names, and congruences."""
  compared = (comparison(gold, answer)
              for comparison in (dates.same_date, dates.same_time, congruences.same))
  same = next((same for same in compared if same is not None), None)
  return None if same is None else Verdict(same, "number")


def _ratios(gold: str, answer: str) -> Verdict | None:
  """Compares 2:3 with 4:6, and times of the day, whose half counts if both name it."""
  gold_match, answer_match = (_RATIO.fullmatch(_phrase(text).replace("to", ":"))
                              for text in (gold, answer))
  if gold_match is None or answer_match is None:
    return None
  halves = {match[2] for match in (gold_match, answer_match) if match[2]}
  parts = [[Fraction(part) for part in match[1].split(":")] for match in (gold_match, answer_match)]
  if halves or len(parts[0]) != len(parts[1]) or 0 in (parts[0][0], parts[1][0]):
    return Verdict(len(halves) < 2 and parts[0] == parts[1], "number")
  scaled = [[part / ratio[0] for part in ratio] for ratio in parts]
  return Verdict(scaled[0] == scaled[1], "number")


def _bases(gold: str, answer: str) -> Verdict | None:
  """Compares numerals with a base: 101_2. A missing base is the other's."""
  gold_match, answer_match = (_BASE.fullmatch(normalize(text)) for text in (gold, answer))
  if gold_match is None or answer_match is None or not (gold_match[2] or answer_match[2]):
    return None
  bases = [_BASES.get(match[2], match[2]) for match in (gold_match, answer_match)]
  same = None in bases or bases[0] == bases[1]
  return Verdict(same and gold_match[1].lstrip("0") == answer_match[1].lstrip("0"), "number")


def _compounds(gold: str, answer: str) -> Verdict | None:
  r"""Compares 5\text{ ft }6\text{ in} as a sum; algebra would drop the words between."""
  gold_parts, answer_parts = ([quantity(part)
                               for part in _UNIT_BETWEEN.sub("\\1\0", text).split("\0")]
                              for text in (gold, answer))
  if max(len(gold_parts), len(answer_parts)) < 2 or None in gold_parts + answer_parts:
    return None
  sums = [total(parts) for parts in (gold_parts, answer_parts)]
  if None not in sums:
    return Verdict(equal(*sums), "number")
  same = len(gold_parts) == len(answer_parts) and all(map(equal, gold_parts, answer_parts))
  return Verdict(same, "number") if min(len(gold_parts), len(answer_parts)) > 1 else None


def _quantities(gold: str, answer: str) -> Verdict | None:
  """Compares numbers with units, and refuses formulas with units that differ."""
  gold_value, answer_value = quantity(gold), quantity(without_label(answer))
  if gold_value is not None and answer_value is None and r"\text" in answer:
    answer_value = worded(answer)
  if gold_value is not None and answer_value is not None:
    return Verdict(equal(gold_value, answer_value), "number")
  listed = latex.list_parts(answer) if gold_value is not None else []
  candidates = [quantity(part) for part in listed]
  if len(candidates) > 1 and all(candidate is not None and equal(gold_value, candidate)
                                 for candidate in candidates):
    return Verdict(True, "number")  # 3/4 or 75%
  units_behind = [units.parse(match[1] + (match[2] or "")) if match else None
                  for match in (_UNIT_BEHIND.search(text) for text in (gold, answer))]
  differ = None not in units_behind and units_behind[0] != units_behind[1]
  return Verdict(False, "number") if differ else None


def _names(gold: str, answer: str) -> Verdict | None:
  """Compares words, and refuses variables that differ only in their case."""
  gold_words, answer_words = latex.words(gold), latex.words(answer)
  if gold_words in _WHETHER and (explained := re.match(rf"{gold_words}[,.;]", _phrase(answer))):
    explanation = _phrase(answer)[explained.end():]  # the explanation
    alternative = re.match(r"(?:or|and|maybe)?(?:yes|no|true|false)(?![a-z])", explanation)
    return Verdict(not alternative, "string")
  is_phrase = gold_words is not None and (
      len(gold_words) > 2 or r"\text" in gold or gold_words in _WHETHER)
  if is_phrase and gold_words == answer_words:
    return Verdict(True, "string")
  if r"\text" in gold and _phrase(gold) == _phrase(answer):
    return Verdict(True, "string")
  variables = [set(_VARIABLE.findall(_COMMAND.sub(" ", text))) | set(_GREEK.findall(text))
               for text in (gold, answer)]
  small = [{name.lower() for name in names} for names in variables]
  differ = small[0] == small[1] and variables[0] != variables[1]
  return Verdict(False, "string") if differ else None


def _phrase(text: str) -> str:
  """Returns words and numbers without case, spaces, and stops that are no decimal points."""
  return re.sub(r"\.(?!\d)", "", normalize(text).casefold()).replace(" ", "")


def question(gold: str, answer: str) -> Verdict | Question:
  """Returns the question whether two formulas are equal, both as the checker reads them.

  It is a verdict where both are then the same text.
  """
  if (formulas := unnamed(gold, answer)) is None:
    return Verdict(False, "string")
  gold, answer = formulas
  gold, answer = unindexed(gold, answer), unindexed(answer, gold)
  gold_value, answer_value = quantity(gold), quantity(answer)
  digits = None if gold_value is None else gold_value.digits
  decimals = digits[0] if digits and digits[0] > 0 and digits[1] >= 3 else None
  names = {inequalities.variable(latex.undecorated(text)) for text in (gold, answer)} - {None}
  gold_formula, answer_formula = latex.canonical(gold), latex.canonical(without_label(answer))
  bounds = inequalities.variable(latex.undecorated(answer)) is not None and r"\in" not in answer
  if len(names) > 1 or (bounds and len(latex.list_parts(gold_formula)) > 1):
    return Verdict(False, "string")  # the interval of an inequality loses its name
  gold_formula, answer_formula = one_parameter(gold_formula, answer_formula)
  if gold_formula.replace(" ", "") != answer_formula.replace(" ", ""):
    if (formulas := parts.comparable(gold_formula, answer_formula)) is None:
      return Verdict(False, "string")  # the checker would not read where they differ
    gold_formula, answer_formula = formulas
  gold_formula, answer_formula = _right_sides(gold_formula, answer_formula)
  if ("matrix" in gold_formula) != ("matrix" in answer_formula):
    gold_formula, answer_formula = map(latex.column_as_tuple, (gold_formula, answer_formula))
  if r"\pi" in answer_formula and gold_value is not None and gold_value.unit == "degree":
    gold_formula = _radians(gold_value)
  if r"\pi" in gold_formula and answer_value is not None and answer_value.unit == "degree":
    answer_formula = _radians(answer_value)
  same = gold_formula.replace(" ", "") == answer_formula.replace(" ", "")
  if same or (r"\equiv" in gold_formula and r"\equiv" in answer_formula):
    return Verdict(same, "string")  # the checker reads no congruences
  if decimals is None:
    gold_formula = latex.exact_decimals(gold_formula)
  return Question(kept_variables(gold_formula, answer_formula),
                  kept_variables(latex.exact_decimals(answer_formula), gold_formula), decimals)


def _without_remarks(gold: str, answer: str) -> str:
  r"""Returns an answer without "\approx 0.69" and "\pmod{1000}" after it, if the gold has none.

  From "x \approx 0.69" the number stays.
  """
  if r"\approx" not in gold:
    answer = _NAMED_ROUNDED.sub("", answer)
    if match := _APPROXIMATELY.search(answer):
      answer = answer if len(latex.list_parts(match[0])) > 1 else answer[:match.start()]
  if "mod" not in gold and (
      match := _REMAINDER.fullmatch(latex.undecorated(answer))):
    answer = match[1]
  return answer


def _unconditional(text: str) -> str:
  """Returns a formula without a remark after it: "for all n", "where k is an integer"."""
  match = _CONDITION.search(text)
  if match is None or not match.start() or r"\in" in match[0]:
    return text
  return text[:match.start()]


def _right_sides(gold: str, answer: str) -> tuple[str, str]:
  """Drops "y =" of one formula, if the other is no equation."""
  if ("=" in gold) == ("=" in answer):
    return gold, answer
  return _NAMED.sub("", gold), _NAMED.sub("", answer)


def _radians(angle: Quantity) -> str:
  return rf"\frac{{{angle.value.numerator} \pi}}{{{180 * angle.value.denominator}}}"


def without_label(answer: str) -> str:
  """Returns "(B) 12" without its label."""
  match = _LABEL.match(latex.undecorated(answer))
  return match[2] if match else answer


_WHETHER = ("yes", "no", "true", "false")
_NAMED_ROUNDED = re.compile(r"^\s*[A-Za-z](?:_\{?\w+\}?)?\s*\\approx(?![a-zA-Z])\s*(?=\S)")
_APPROXIMATELY = re.compile(r"(?<=\S)\s*\\approx(?![a-zA-Z]).*$", re.DOTALL)
_REMAINDER = re.compile(r"(?:[A-Za-z]\w*\s*\\equiv\s*)?(.+?)\s*\(?\\pmod\s*\{?\w+\}?\)?")
SLACK = Fraction(1, 10**9)  # of a tolerance, for its binary form
_TOLERANCE = re.compile(r"\s*\\tolerance\{([^{}]*)\}\s*$")
_LABEL_ALONE = re.compile(r"\(?([A-J])\)?")
_LABEL = re.compile(r"(?:\\text(?:bf)?\s?\{)?\s*\(?([A-J])\)\s*\}?\s*[:.]?\s*(?=[^\s,;])(.+)",
                    re.DOTALL)
_RATIO = re.compile(r"(\d+(?:\.\d+)?(?::\d+(?:\.\d+)?)+)([ap]m)?")
_CONDITION = re.compile(r"\s*,?\s*\\text\s?\{\s*,?\s*(?:for|where|with)\b[^{}]*\}[^=]*$")
_NAMED = re.compile(r"^\s*(?:[A-Za-z]|\\(?:text|mathrm)\s?\{[A-Za-z .]+\})(?:_\{?\w+\}?)?\s*=\s*")
_BASE = re.compile(r"(?:(?=\(.*_)\()?([0-9A-F]+)\)?(?:_\{?\(?(?:base)?(\d+|[a-z]+)\)?\}?)?")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7",
          "eight": "8", "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"}
_UNIT_BEHIND = re.compile(r"\\(?:text|mathrm)\s?\{([^{}]*)\}\s*(\^\s*\{?\d\}?)?\s*\.?\s*$")
_UNIT_BETWEEN = re.compile(r"(\\(?:text|mathrm)\s?\{[^{}]*?\})(?:\s|\\text\s?\{ and \})*(?=\d)")
_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s?\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]{3,}")
_GREEK = re.compile(r"\\([gG]amma|[dD]elta|[tT]heta|[lL]ambda|[sS]igma|[pP]hi|[pP]si|[oO]mega|[xX]i"
                    r"|[pP]i)(?![a-zA-Z])")
_VARIABLE = re.compile(r"(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])")
