r"""The comparisons of two formulas, from cheap to dear; what they leave open is a question.

Order: own derivation; the known pairs are in tests/grading/answer_pairs.jsonl.
"""

import dataclasses
import re
from fractions import Fraction

from jaxrl_llm.grading import inequalities, latex, letters, parts, units
from jaxrl_llm.grading.conclusions import worded
from jaxrl_llm.grading.latex import normalize
from jaxrl_llm.grading.quantities import Quantity, equal, quantity


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Whether an answer is right, and the rung of the comparison that decided it.

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


def compare(gold: str, said: str) -> Verdict | Question:
  """Returns the verdict on two formulas, or the question that is left for algebra.

  They are compared as strings, as labels of options, ratios, numerals with a base, numbers with
  units, and words. What no comparison decides is a question.

  Args:
    gold: LaTeX without box, perhaps of `with_tolerance`.
    said: LaTeX without box. Neither is empty.
  """
  if match := _TOLERANCE.search(gold):
    return _near(gold[:match.start()], said, float(match[1]))
  if normalize(said) == normalize(gold):
    return Verdict(True, "string")
  said = parts.last_step(gold, said)
  gold, said = _unconditional(gold), _unconditional(_without_remarks(gold, said))
  if labelled := _LABEL.match(latex.undecorated(gold)):
    if (found := _label(said)) is not None:
      return Verdict(found == labelled[1], "letter")
    gold = labelled[2]
  for rung in (_labels, _ratios, _bases, _compounds, _quantities, _names):
    if (verdict := rung(gold, said)) is not None:
      return verdict
  return question(gold, said)


def _near(gold: str, said: str, tolerance: float) -> Verdict | Question:
  """Compares as `compare` does, but numbers up to a tolerance."""
  found = compare(gold, said)
  ours, theirs = quantity(gold), quantity(without_label(said))
  if isinstance(found, Question):
    return dataclasses.replace(found, tolerance=tolerance)
  if found.correct or ours is None or theirs is None:
    return found
  near = dataclasses.replace(theirs, value=ours.value, digits=None)
  distance = abs(ours.value - theirs.value)
  return Verdict(equal(ours, near) and distance <= Fraction(tolerance) * (1 + SLACK), "number")


def _labels(gold: str, said: str) -> Verdict | None:
  """Compares the labels of options, if the gold is one; (B) is the label of "(B) 12"."""
  expected = _LABEL_ALONE.fullmatch(normalize(gold))
  if expected is None:
    return None
  found = _label(said)
  return None if found is None else Verdict(found == expected[1], "letter")


def _label(text: str) -> str | None:
  """Returns the B of "B", "(B)", "Option B" and "(B) 12"; `letters.HEDGE` of "(B) or (C)"."""
  found = letters.option(text)
  return found if found == letters.HEDGE or (found and found in text) else None


def _ratios(gold: str, said: str) -> Verdict | None:
  """Compares 2:3 with 4:6, and times of the day, whose half counts if both name it."""
  ours, theirs = (_RATIO.fullmatch(_phrase(text).replace("to", ":")) for text in (gold, said))
  if ours is None or theirs is None:
    return None
  halves = {match[2] for match in (ours, theirs) if match[2]}
  parts = [[Fraction(part) for part in match[1].split(":")] for match in (ours, theirs)]
  if halves or len(parts[0]) != len(parts[1]) or 0 in (parts[0][0], parts[1][0]):
    return Verdict(len(halves) < 2 and parts[0] == parts[1], "number")
  scaled = [[part / one[0] for part in one] for one in parts]
  return Verdict(scaled[0] == scaled[1], "number")


def _bases(gold: str, said: str) -> Verdict | None:
  """Compares numerals with a base: 101_2. A missing base is the other's."""
  ours, theirs = (_BASE.fullmatch(normalize(text)) for text in (gold, said))
  if ours is None or theirs is None or not (ours[2] or theirs[2]):
    return None
  bases = [_BASES.get(match[2], match[2]) for match in (ours, theirs)]
  same = None in bases or bases[0] == bases[1]
  return Verdict(same and ours[1].lstrip("0") == theirs[1].lstrip("0"), "number")


def _compounds(gold: str, said: str) -> Verdict | None:
  r"""Compares 5\text{ ft }6\text{ in} part by part; algebra would drop the words between."""
  ours, theirs = ([quantity(part) for part in _UNIT_BETWEEN.sub("\\1\0", text).split("\0")]
                  for text in (gold, said))
  if min(len(ours), len(theirs)) < 2 or None in ours + theirs:
    return None
  return Verdict(len(ours) == len(theirs) and all(map(equal, ours, theirs)), "number")


def _quantities(gold: str, said: str) -> Verdict | None:
  """Compares numbers with units, and refuses formulas with units that differ."""
  ours, theirs = quantity(gold), quantity(without_label(said))
  if ours is not None and theirs is None and r"\text" in said:
    theirs = worded(said)
  if ours is not None and theirs is not None:
    return Verdict(equal(ours, theirs), "number")
  again = [quantity(part) for part in latex.items(said)] if ours is not None else []
  if len(again) > 1 and all(one is not None and equal(ours, one) for one in again):
    return Verdict(True, "number")  # 3/4 or 75%
  known = [units.parse(match[1] + (match[2] or "")) if match else None
           for match in (_UNIT_BEHIND.search(text) for text in (gold, said))]
  return Verdict(False, "number") if None not in known and known[0] != known[1] else None


def _names(gold: str, said: str) -> Verdict | None:
  """Compares words, and refuses variables that differ only in their case."""
  ours, theirs = latex.words(gold), latex.words(said)
  if ours in _WHETHER and (explained := re.match(rf"{ours}[,.;]", _phrase(said))):
    rest = _phrase(said)[explained.end():]  # what follows explains it
    return Verdict(not re.match(r"(?:or|and|maybe)?(?:yes|no|true|false)(?![a-z])", rest), "string")
  if ours is not None and ours == theirs and (len(ours) > 2 or r"\text" in gold):
    return Verdict(True, "string")
  if r"\text" in gold and _phrase(gold) == _phrase(said):
    return Verdict(True, "string")
  variables = [set(_VARIABLE.findall(_COMMAND.sub(" ", text))) for text in (gold, said)]
  small = [{name.lower() for name in names} for names in variables]
  differ = small[0] == small[1] and variables[0] != variables[1]
  return Verdict(False, "string") if differ else None


def _phrase(text: str) -> str:
  """Returns words and numbers without case, spaces, and stops that are no decimal points."""
  return re.sub(r"\.(?!\d)", "", normalize(text).casefold()).replace(" ", "")


def question(gold: str, said: str) -> Verdict | Question:
  """Returns the question whether two formulas are equal, both as the checker reads them.

  It is a verdict where both are then the same text.
  """
  expected, found = quantity(gold), quantity(said)
  digits = None if expected is None else expected.digits
  decimals = digits[0] if digits and digits[0] > 0 and digits[1] >= 3 else None
  names = {inequalities.variable(latex.undecorated(text)) for text in (gold, said)} - {None}
  ours, theirs = latex.canonical(gold), latex.canonical(without_label(said))
  bounds = inequalities.variable(latex.undecorated(said)) is not None and r"\in" not in said
  if len(names) > 1 or (bounds and len(latex.items(ours)) > 1):
    return Verdict(False, "string")  # the interval of an inequality loses its name
  ours, theirs = _one_parameter(ours, theirs)
  if ours.replace(" ", "") != theirs.replace(" ", ""):
    if (both := parts.comparable(ours, theirs)) is None:
      return Verdict(False, "string")  # the checker would not read where they differ
    ours, theirs = both
  ours, theirs = _right_sides(ours, theirs)
  if ("matrix" in ours) != ("matrix" in theirs):
    ours, theirs = latex.column_as_tuple(ours), latex.column_as_tuple(theirs)
  if r"\pi" in theirs and expected is not None and expected.unit == "degree":
    ours = _radians(expected)
  if r"\pi" in ours and found is not None and found.unit == "degree":
    theirs = _radians(found)
  same = ours.replace(" ", "") == theirs.replace(" ", "")
  if same or (r"\equiv" in ours and r"\equiv" in theirs):
    return Verdict(same, "string")  # the checker reads no congruences
  if decimals is None:
    ours = latex.exact_decimals(ours)
  return Question(ours, latex.exact_decimals(theirs), decimals)


def _without_remarks(gold: str, said: str) -> str:
  r"""Returns an answer without "\approx 0.69" and "\pmod{1000}" behind it, if the gold has none.

  Of "x \approx 0.69" the number stays.
  """
  if r"\approx" not in gold:
    said = _NAMED_ROUNDED.sub("", said)
    if match := _APPROXIMATELY.search(said):
      said = said[:match.start()]
  if "mod" not in gold and (match := _REMAINDER.fullmatch(said.strip())):
    said = match[1]
  return said


def _unconditional(text: str) -> str:
  """Returns a formula without a remark behind it: "for all n", "where k is an integer"."""
  match = _CONDITION.search(text)
  if match is None or not match.start() or r"\in" in match[0]:
    return text
  return text[:match.start()]


def _one_parameter(gold: str, said: str) -> tuple[str, str]:
  """Drops "k \\in Z" behind both formulas, and gives the parameter one name."""
  ours, theirs = _PARAMETER.search(gold), _PARAMETER.search(said)
  if ours is None or theirs is None:
    return gold[:ours.start()] if ours else gold, said[:theirs.start()] if theirs else said
  name = rf"(?<![a-zA-Z\\]){theirs[1]}(?![a-zA-Z])"
  return gold[:ours.start()], re.sub(name, ours[1], said[:theirs.start()])


def _right_sides(gold: str, said: str) -> tuple[str, str]:
  """Drops "y =" of one formula, if the other is no equation."""
  if ("=" in gold) == ("=" in said):
    return gold, said
  return _NAMED.sub("", gold), _NAMED.sub("", said)


def _radians(angle: Quantity) -> str:
  return rf"\frac{{{angle.value.numerator} \pi}}{{{180 * angle.value.denominator}}}"


def without_label(said: str) -> str:
  """Returns "(B) 12" without its label."""
  match = _LABEL.match(latex.undecorated(said))
  return match[2] if match else said


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
_PARAMETER = re.compile(r"\s*[,;]?\s*(?:\\text\s?\{[^{}]*\}\s*)?\(?\s*([a-z])\s*\\in\s*"
                        r"\\(?:mathbb|mathbf)\s*\{?[ZNRQ]\}?\s*(?:\^?\+)?\)?\s*$")
_NAMED = re.compile(r"^\s*[A-Za-z](?:_\{?\w+\}?)?\s*=\s*")
_BASE = re.compile(r"([0-9A-F]+)(?:_\{?(\d+|[a-z]+)\}?)?")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7",
          "eight": "8", "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"}
_UNIT_BEHIND = re.compile(r"\\(?:text|mathrm)\s?\{([^{}]*)\}\s*(\^\s*\{?\d\}?)?\s*\.?\s*$")
_UNIT_BETWEEN = re.compile(r"(\\(?:text|mathrm)\s?\{[^{}]*\})\s*(?=\d)")
_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s?\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]{3,}")
_VARIABLE = re.compile(r"(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])")
