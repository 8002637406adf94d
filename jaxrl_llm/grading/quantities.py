r"""Numbers with at most a unit: `1,024`, `\frac{3}{4}`, `1 1/2`, `\$5`, `72\text{ cm}^2`.

Two quantities are compared exactly, as fractions. Units are names here: 5 km is not 5 m, and none
is converted, since reference answers name the unit that was asked for. Other words behind a number
("12 apples") say nothing about its value.
"""

import dataclasses
import functools
import re
from decimal import Decimal
from fractions import Fraction

from jaxrl_llm.grading.latex import fractions, undecorated

LONGEST = 400  # digits


@dataclasses.dataclass(frozen=True)
class Quantity:
  """A number and its unit, percent sign or degree sign.

  Attributes:
    value: exact; 50 for 50%.
    percent: whether a percent sign or the word follows.
    unit: text of the unit, empty without one. It may be a word that is no unit.
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
  text = fractions(undecorated(_WORDED.sub(r"\1", text)).replace("{,}", ",")).strip()
  match = _QUANTITY.fullmatch(text)
  if match is None or len(match["value"]) > LONGEST:
    return None
  value, rest = _exact(match["value"]), match["unit"]
  if value is None:
    return None
  if scale := _SCALE.match(rest):
    value, rest = value * 10**_ZEROS[scale[1]], rest[scale.end():]
  unit = _unit(rest)
  if unit is None:
    return None
  unit = f"degree {unit}".strip() if match["degree"] else unit or (match["money"] or "")[-1:]
  decimals = re.fullmatch(r"([\d, ~]*)\.(\d+)", match["value"])
  digits = len(re.sub(r"\D", "", match["value"]).lstrip("0"))
  return Quantity(-value if "-" in match["sign"] else value, bool(match["percent"]), unit,
                  (len(decimals[2]), digits) if decimals else None)


def equal(gold: Quantity, answer: Quantity) -> bool:
  """Returns whether two quantities are equal.

  - A known unit of the gold must be the answer's, if that has any; other words are not compared.
    A percentage has no unit: 5% is not 5 dollars.
  - Of 50% and a number without the sign, 50 and 0.5 are both equal to it.
  - A gold decimal with three or more significant digits is taken as rounded, so 0.333 equals 1/3;
    a decimal in the answer is taken as exact, so 0.333 does not equal a gold 1/3.
  """
  units = [known_unit(number.unit) for number in (gold, answer)]
  if units[0] and answer.unit and units[0] != units[1]:
    return False
  if gold.percent != answer.percent:
    if gold.unit or units[1]:
      return False
    if answer.value != gold.value:
      return answer.value == gold.value * (Fraction(1, 100) if gold.percent else 100)
  if gold.digits and answer.digits is None and gold.digits[0] > 0 and gold.digits[1] >= 3:
    return round(answer.value, gold.digits[0]) == gold.value
  return answer.value == gold.value


@functools.lru_cache(1024)
def known_unit(text: str) -> str | None:
  """Returns "cm^2" for "square centimeters", "m/s" for "meters per second"; None if unknown."""
  text = re.sub(r"[{}.~\\]", "", text).strip()
  text = re.sub(r"\b(?:square|sq)\s+(\w+)", r"\1^2", re.sub(r"\bcubic\s+(\w+)", r"\1^3", text))
  text = re.sub(r"\s*(?:/|\bper\b)\s*", "/", re.sub(r"\s*\^\s*", "^", text))
  names = [_NAMES.get(word.lower().rstrip("s"), word) if len(word) > 2 else word
           for word in re.findall(r"[^\W\d]+|[$€£¥₹]|\^\d|/", text)]
  is_unit = names and not re.search(r"[^\w\s^/*$€£¥₹]|(?<!\^)\d", text) and all(
      name in _SYMBOLS or name[0] in "^/" for name in names)
  return "".join(names) if is_unit else None


def _exact(text: str) -> Fraction | None:
  r"""Returns the value of 1,024, 3.5, 3/4, 1 1/2 or 1\frac{1}{2}; None of 1/0."""
  integer, _, ratio = re.sub(r"(?<=\d)(?:\s+(?=\d+\s*/)|\s*(?=\\frac))", "+", text).rpartition("+")
  above, below = re.fullmatch(r"\\frac\{(.*)\}\s*\{(.*)\}|(.*)", ratio).group(1, 2)
  if below is None:
    above, _, below = ratio.partition("/")
  numbers = [Fraction(Decimal(re.sub(r"[, ~]", "", part))) for part in (integer or "0", above,
                                                                       below or "1")]
  return numbers[0] + numbers[1] / numbers[2] if numbers[2] else None


def _unit(text: str) -> str | None:
  """Returns a unit's text; None if what follows the number is no unit but continues a formula.

  Bare letters are a unit if it is known, or if they are words of three letters and more. A single
  letter needs a space before it: 5 m, and not 5m.
  """
  bare, formula = _TEXT.sub(r" \1 ", text), _TEXT.sub(" ", text)
  is_text, spaced = bare != text, text[:1].isspace()
  bare = re.sub(r"\s+(?=\^)", "", " ".join(bare.split()))
  if not bare:
    return ""
  if _NO_UNIT.search(bare):
    return None
  if known_unit(bare) and (is_text or spaced or len(bare) > 1):
    return bare
  if len(bare) == 1 or re.search(r"(?<!\^)(?<!\^\{)\d|[,;:|&]", bare) or not re.search(
      r"[^\W\d_]", bare):
    return None  # a second number, the next of a list, or a lone sign
  if is_text:
    return None if re.search(r"[^\W\d_]", formula) else bare  # 5x\text{ cm} is no number
  return bare if spaced and all(len(word) > 2 for word in re.findall("[A-Za-z]+", bare)) else None


_NAMES = {
    "meter": "m", "metre": "m", "centimeter": "cm", "millimeter": "mm", "kilometer": "km",
    "gram": "g", "kilogram": "kg", "liter": "L", "second": "s", "sec": "s", "minute": "min",
    "hour": "h", "day": "day", "week": "week", "month": "month", "year": "year", "inche": "in",
    "inch": "in", "feet": "ft", "foot": "ft", "yard": "yd", "mile": "mi", "pound": "lb",
    "ounce": "oz", "mph": "mi/h", "dollar": "$", "usd": "$", "cent": "cent", "euro": "€",
    "degree": "degree", "celsiu": "C", "fahrenheit": "F", "unit": "unit", "rad": "rad"}
_SYMBOLS = frozenset(("m cm mm km g kg mg s min h L mL in ft yd mi lb oz N kN Nm J MJ W kW mW V"
                      " Pa kPa MPa atm K Hz mol eV Wh kWh MWh PM AM pm am C F $ € £ ¥ ₹").split()
                     ) | {*_NAMES.values()}
_DECIMAL = r"(?:(?:\d{1,3}(?:[, ~]\d{3}(?!\d))+|\d+)(?:\.\d*)?|\.\d+)"
_QUANTITY = re.compile(
    r"(?P<sign>\s*[-+]?\s*)(?P<money>\\\$|[$€£¥₹]|\\text\s?\{\s*[$€£¥₹](?=\s*\}))?"
    r"(?(money)\s*\}?)\s*"
    r"(?P<value>(?:\d+\s*)?\\frac\{\s*[-+]?\d*\.?\d+\s*\}\s*\{\s*[-+]?\d*\.?\d+\s*\}"
    r"|\d+\s+\d+\s*/\s*\d+(?![\d.])|\d[\d,]*(?:\.\d+)?\s*/\s*-?\d+(?:\.\d+)?(?![\d/])"
    rf"|{_DECIMAL}(?![\d,]*\d))"
    r"(?:\s*(?P<percent>\\?%|\\text\s?\{\s*(?:\\?%|percent)\s*\}|percent\b)"
    r"|\s*(?P<degree>\^?\s*\{?\s*\\(?:circ|degree)\s*\}?|\^\s*\{?\\text\s?\{o\}\}?"
    r"|(?:\\text\s?\{)?\s*degrees?\s*\}?))?(?P<unit>.{0,80})", re.DOTALL)
_WORDED = re.compile(r"^\s*\\text\s?\{(\s*\d[^{}]*)\}\s*$")
_SCALE = re.compile(r"\s*(?:\\text\s?\{)?\s*(hundred|thousand|million|billion|trillion)\b\s*\}?")
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NO_UNIT = re.compile(r"[\\_=<>+]|\b(?:and|or|to|if|mod|sin|cos|tan|log|ln|sqrt|pi|exp|frac|plus"
                      r"|minus|more|less|fewer|above|below|upwards?|beyond|least|most|than|not"
                      r"|times|is|are|was|were|remainder|squared|cubed|factorial)\b"
                      r"|^\s*[-/*^(!\d]")
_TEXT = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|operatorname)\s?\{([^{}]*)\}")
