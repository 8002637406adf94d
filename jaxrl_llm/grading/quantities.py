r"""Numbers with at most a unit: `1,024`, `\frac{3}{4}`, `1 1/2`, `5\times10^3`, `72\text{ cm}^2`.

Two quantities are compared exactly, as fractions. Rules: own derivation; the known pairs are in
tests/grading/answer_pairs.jsonl.
"""

import dataclasses
import re
from collections import deque
from decimal import Decimal
from fractions import Fraction

from jaxrl_llm.grading import units
from jaxrl_llm.grading.latex import fractions, undecorated

LONGEST = 400  # digits


@dataclasses.dataclass(frozen=True)
class Quantity:
  """A number and its unit, percent sign or degree sign.

  Attributes:
    value: exact; 50 for 50%.
    percent: whether a percent sign or the word follows.
    unit: text of the unit, empty without one. It may be a word without a known dimension.
    digits: of a decimal such as 0.333: (decimals, significant digits); None otherwise.
  """

  value: Fraction
  percent: bool = False
  unit: str = ""
  digits: tuple[int, int] | None = None


def quantity(text: str) -> Quantity | None:
  r"""Returns the number that a text is, or None if it holds anything else.

  Signs of money, a percent sign, degrees, and a unit or words after it are allowed, up to 80
  characters.
  """
  if len(text) > 2 * LONGEST:
    return None
  text = _WORDED.sub(r"\1", text)
  text = fractions(undecorated(text).replace("{,}", ",")).strip()
  money = _MONEY.match(text)
  sign, body = 1, text[money.end():] if money else text
  if money and money[1] == "-":
    sign = -1
  parsed = _number(body)
  if parsed is None:
    return None
  value, end, digits = parsed
  suffix = _BEHIND.fullmatch(body, end)
  if suffix is None:
    return None
  percent, text = bool(suffix["percent"]), suffix["unit"]
  if scale := _SCALE.match(text):
    value, text = value * 10**_ZEROS[scale[1]], text[scale.end():]
  unit = _unit(text, spaced=body[end:end + 1].isspace())
  if unit is None:
    return None
  if money and not unit:
    unit = next((name for symbol, name in _CURRENCIES.items() if symbol in money[0]), "")
  if suffix["degree"]:
    unit = _SCALES.get(suffix["scale"] or unit.strip(" .{}").casefold(), "degree")
  return Quantity(sign * value, percent, unit, digits)


def equal(gold: Quantity, answer: Quantity) -> bool:
  """Returns whether two quantities are equal.

  - Known units must be of one dimension, and are converted: 5 km is 5000 m and not 5 m. A missing
    or unknown unit is not compared, but a percentage has none: 5% is not 5 dollars.
  - Of 50% and a number without the sign, 50 and 0.5 are both equal to it.
  - A gold decimal with three or more significant digits is taken as rounded, so 0.333 equals 1/3;
    a decimal in the answer is taken as exact, so 0.333 does not equal a gold 1/3.
  """
  gold_unit, answer_unit = units.parse(gold.unit), units.parse(answer.unit)
  value = answer.value
  counts = gold.unit and not gold.percent
  if gold.percent != answer.percent and (gold_unit or answer_unit or counts):
    return False
  if gold_unit is not None and answer_unit is not None:
    if gold_unit[0] == answer_unit[0]:
      value *= answer_unit[1] / gold_unit[1]
    elif not _ALIKE.fullmatch(" ".join(sorted((gold.unit, answer.unit)))):
      return False
  if gold.percent != answer.percent and value != gold.value:
    return value == gold.value / 100 if gold.percent else value / 100 == gold.value
  if gold.digits and answer.digits is None and gold.digits[0] > 0 and gold.digits[1] >= 3:
    return round(value, gold.digits[0]) == gold.value
  return value == gold.value


def total(terms: list[Quantity]) -> Quantity | None:
  """Returns 90 min for 1 h and 30 min, in the unit of the last; None unless each is of one kind."""
  known = [units.parse(term.unit) for term in terms]
  if None in known or len({unit[0] for unit in known}) > 1:
    return None
  value = sum(term.value * unit[1] for term, unit in zip(terms, known, strict=True))
  return Quantity(value / known[-1][1], unit=terms[-1].unit)


def last_number(text: str) -> Fraction | None:
  r"""Returns the last number or fraction in a text, or None.

  None also if it has more than 400 characters or the denominator 0. A minus after a digit, letter
  or bracket is not its sign.
  """
  number = _last(text)
  return None if number is None else number[0]


def stated_number(text: str) -> Fraction | None:
  r"""Returns the last number of a sentence if it is no part of a formula, or None.

  Numbers that are part of a formula are, for example, the 3 of 2\sqrt{3}, x^2 or 5!. The exponent
  of a unit is none: "72 cm^2" is 72.
  """
  text = _UNIT_EXPONENT.sub(r"\1", text)
  number = _last(text)
  if number is None or number[1]:
    return None
  return number[0]


def _last(text: str) -> tuple[Fraction, bool] | None:
  """Returns the last number and whether it is part of a formula."""
  text = FRACTION.sub(r"\1\2/\3", text.replace("−", "-").replace("{,}", ","))
  match = next(iter(deque(NUMBER.finditer(text), maxlen=1)), None)
  if match is None or len(match[0]) > LONGEST:
    return None
  denominator = int(match[3] or 1)
  if denominator == 0:
    return None
  value, sign = Fraction(Decimal(match[2].replace(",", ""))) / denominator, match[1]
  before, after = text[max(0, match.start() - 12):match.start()], text[match.end():match.end() + 8]
  if value < 1 and match[3] and not sign and (integer := _WHOLE.search(before)):
    value, sign, before = value + int(integer[2]), integer[1], before[:integer.start()]  # 2 3/4
  inside = bool(IN_FORMULA.search(before) or GOES_ON.match(after))
  return (-value if sign == "-" else value), inside


def _number(text: str) -> tuple[Fraction, int, tuple[int, int] | None] | None:
  """Returns (value, end, digits) of the number that a text begins with."""
  sign = re.match(r"\s*([-+]?)\s*", text)
  for pattern, make in _NUMBERS:
    match = pattern.match(text, sign.end())
    if match is None:
      continue
    value = make(match) if len(match[0]) <= LONGEST else None
    if value is None:
      return None
    return (-value if sign[1] == "-" else value), match.end(), _digits(pattern, match)
  return None


def _digits(pattern: re.Pattern, match: re.Match) -> tuple[int, int] | None:
  if pattern is not _DECIMAL or not match["decimals"]:
    return None
  significant = (match["whole"] + match["decimals"]).lstrip("0")
  return len(match["decimals"]), len(re.sub(r"\D", "", significant))


def _mixed(match: re.Match) -> Fraction | None:
  denominator = int(match["below"])
  if denominator == 0:
    return None
  return int(match["whole"]) + Fraction(int(match["above"]), denominator)


def _ratio(match: re.Match) -> Fraction | None:
  numerator, denominator = _exact(match["above"]), _exact(match["below"])
  return None if denominator == 0 else numerator / denominator


def _power(match: re.Match) -> Fraction:
  return _exact(match["mantissa"] or "1") * Fraction(10)**int(match["exponent"])


def _periodic(match: re.Match) -> Fraction:
  period, fixed = match["period"] or match["dot"], match["fixed"]
  integer = match["whole"] or "0"
  return Fraction(int(integer + fixed + period) - int(integer + fixed),
                  (10**len(period) - 1) * 10**len(fixed))


def _decimal(match: re.Match) -> Fraction | None:
  return _exact(match[0]) if match[0].strip(".") else None


def _exact(text: str) -> Fraction:
  return Fraction(Decimal(re.sub(r"[, ~]", "", text)))


def _unit(text: str, *, spaced: bool) -> str | None:
  """Returns a unit's text; None if what follows the number is no unit but continues a formula.

  Bare letters are a unit if it is known, or if they are words of three letters and more. A single
  letter needs a space before it: 5 m, and not 5m.

  Args:
    spaced: whether a space is between the number and the text.
  """
  bare, formula = _TEXT.sub(r" \1 ", text), _TEXT.sub(" ", text)
  marked = bare != text
  bare = re.sub(r"\s+(?=\^)", "", " ".join(bare.split()))
  if not bare:
    return ""
  if _NO_UNIT.search(bare):
    return None
  if units.parse(bare) is not None and (
      marked or (bare not in units.PRODUCTS and (spaced or len(bare) > 1))):
    return bare
  if _FURTHER.search(bare) or not _NAME.search(bare):
    return None  # a second number, the next of a list, or a lone sign
  if marked:
    return None if _NAME.search(formula) else bare  # 5x\text{ cm} is no number
  return bare if spaced and all(len(word) > 2 for word in re.findall("[A-Za-z]+", bare)) else None


_DIGITS = r"(?:\d{1,3}(?:,\d{3}(?!\d))*(?!\d)|\d+)(?:\.\d+)?|\.\d+"
NUMBER = re.compile(rf"((?<![\w).\]}}])[-+])?({_DIGITS})(?:\s{{0,3}}/\s{{0,3}}(\d+)(?![.,]?\d))?")
_WHOLE = re.compile(r"((?<![\w).\]}])[-+])?(?<![\w.,/^])(\d{1,3})\s{1,3}$")
FRACTION = re.compile(
    r"(-?)\\[dtc]?frac\s{0,3}\{\s{0,3}([-+]?\d+)\s{0,3}\}\s{0,3}\{\s{0,3}(\d+)\s{0,3}\}")
_VALUE = r"[-+]?\d*\.?\d+"
_MIXED = re.compile(r"(?P<whole>\d+)\s*\\frac\{(?P<above>\d+)\}\s*\{(?P<below>\d+)\}")
_MIXED_PLAIN = re.compile(r"(?P<whole>\d+)\s+(?P<above>\d+)\s*/\s*(?P<below>\d+)(?![\d.])")
_RATIO = re.compile(
    rf"\\frac\{{\s*(?P<above>{_VALUE})\s*\}}\s*\{{\s*(?P<below>{_VALUE})\s*\}}")
_RATIO_PLAIN = re.compile(
    r"(?P<above>\d[\d,]*(?:\.\d+)?)\s*/\s*(?P<below>-?\d+(?:\.\d+)?)(?![\d/])")
_POWER = re.compile(r"(?:(?P<mantissa>\d+(?:\.\d+)?)\s*(?:\\times|\\cdot|\*|x)\s*)?"
                    r"10\s*\^\s*(?:\{\s*)?(?P<exponent>[-+]?\d{1,3})(?!\d)(?:\s*\})?")
_E_POWER = re.compile(r"(?P<mantissa>\d+(?:\.\d+)?)[eE](?P<exponent>[-+]?\d{1,3})(?!\w)")
_PERIODIC = re.compile(r"(?P<whole>\d*)\.(?P<fixed>\d*)"
                       r"(?:\\overline\s?\{(?P<period>\d+)\}|\\dot\s?\{?(?P<dot>\d)\}?)(?!\d)")
_DECIMAL = re.compile(
    r"(?P<whole>\d{1,3}(?:[, ~]\d{3}(?!\d))+|\d+|(?=\.\d))(?:\.(?P<decimals>\d*))?(?![\d,]*\d)")
_NUMBERS = ((_MIXED, _mixed), (_MIXED_PLAIN, _mixed), (_RATIO, _ratio), (_RATIO_PLAIN, _ratio),
            (_POWER, _power), (_E_POWER, _power), (_PERIODIC, _periodic), (_DECIMAL, _decimal))
_WORDED = re.compile(r"^\s*\\text\s?\{(\s*\d[^{}]*)\}\s*$")
_MONEY = re.compile(r"\s*(-?)\s*(?:\\\$|[$€£¥₹]|\\text\s?\{\s*[$€£¥₹]\s*\}|(?:Rs|USD)\.?\s)\s*")
_CURRENCIES = {"$": "dollar", "USD": "dollar", "€": "euro", "£": "sterling", "¥": "yen",
               "₹": "rupee", "Rs": "rupee"}
_BEHIND = re.compile(
    r"\s*(?:(?P<percent>\\?%|\\text\s?\{\s*(?:\\?%|per\s?cent)\s*\}|per\s?cent\b)"
    r"|(?P<degree>\^?\s*\{?\s*\\(?:circ|degree)\s*\}?|\^\s*\{?\\text\s?\{o\}\}?|\\degree"
    r"|(?:\\text\s?\{)?\s*degrees?\s*\}?)(?:\s*\\?(?P<scale>[CF])(?![a-zA-Z]))?)?"
    r"(?P<unit>.{0,80})", re.DOTALL)
_SCALES = {"c": "celsius", "C": "celsius", "celsius": "celsius", "f": "fahrenheit",
           "F": "fahrenheit", "fahrenheit": "fahrenheit"}
# A degree sign alone may be of an angle or a temperature, a pound of a mass or a currency.
_ALIKE = re.compile(r"celsius degree|degree fahrenheit|pounds? sterling")
_SCALE = re.compile(r"(?:\\text\s?\{)?\s*(hundred|thousand|million|billion|trillion)\b\s*\}?")
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NO_UNIT = re.compile(r"[\\_=<>+]|\b(?:and|or|to|if|mod|sin|cos|tan|log|ln|sqrt|pi|exp|frac|plus"
                      r"|minus|more|less|fewer|above|below|upwards?|beyond|least|most|than|not|times|is|are|was|were)\b"
                      r"|^\s*(?:squared|cubed|factorial)\b"
                      r"|^\s*[-/*^(!\d]")
_TEXT = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|operatorname)\s?\{([^{}]*)\}")
_FURTHER = re.compile(r"(?<!\^)(?<!\^\{)\d|[,;:|&]")
_NAME = re.compile(r"[^\W\d_]|[€£¥₹]")
_UNIT_EXPONENT = re.compile(
    r"(?i)(\b(?:[mck]?m|in|ft|yd|mi|units?|[a-z]{4,12})|\})\s?\^\s?\{?\d\}?")
IN_FORMULA = re.compile(r"[\^_({]\s*\{?\s*$|\\[a-zA-Z]+\s*[\[{(]?\s*$|[a-zA-Z0-9)}]\s*[*]\s*$")
GOES_ON = re.compile(
    r"\s*(?:[\^!_*+]|/\s*[a-zA-Z\\]|\\(?!\)|\]|%|\$|,|;| |text|mathrm|circ|degree))")
