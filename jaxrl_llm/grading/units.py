"""Units after a number: `5 km` is not `5 m`, and it is `5000 m`; `1 kWh` is `3.6 MJ`.

Units of school problems and the SI are known. Other words after a number ("12 apples") say nothing
about its value, and are ignored by whoever compares. Factors: the SI brochure, 9th edition, and
NIST Special Publication 811 for the others; a calorie has 4.184 J.
"""

import functools
import re
from fractions import Fraction

Unit = tuple[tuple[tuple[str, int], ...], Fraction]  # ((base, exponent), ...), and the factor to it

_BASES = ("m s g A K mol dollar degree celsius fahrenheit month euro sterling yen rupee").split()
_DEFINED = {
    "in": "0.0254 m", "inch": "in", "ft": "12 in", "foot": "ft", "feet": "ft", "yd": "3 ft",
    "yard": "yd", "mi": "5280 ft", "mile": "mi", "mph": "mi/h", "kph": "km/h",
    "sec": "s", "min": "60 s", "minute": "min", "h": "60 min", "hr": "h",
    "hour": "h", "day": "24 h", "week": "7 day", "rpm": "1 /min", "year": "12 month",
    "yr": "year", "decade": "10 year", "century": "100 year", "lb": "453.59237 g", "pound": "lb",
    "oz": "28.349523125 g", "ounce": "oz", "tonne": "1000 kg", "ton": "2000 lb",
    "l": "0.001 m^3", "L": "l", "litre": "l", "gallon": "3.785411784 l", "gal": "gallon",
    "quart": "0.25 gallon", "pint": "0.5 quart", "cup": "0.5 pint",
    "cent": "0.01 dollar", "usd": "dollar", "eur": "euro", "pence": "0.01 sterling",
    "gbp": "sterling", "€": "euro",
    "£": "sterling", "¥": "yen", "₹": "rupee", "deg": "degree",
    "rad": "57.29577951308232 degree",
    "N": "kg*m/s^2", "Nm": "N*m", "J": "N*m", "W": "J/s", "Wh": "W*h", "Pa": "N/m^2", "V": "W/A",
    "Hz": "1 /s", "dyn": "0.00001 N", "dyne": "dyn", "eV": "1.602176634e-19 J",
    "cal": "4.184 J", "atm": "101325 Pa", "bar": "100000 Pa", "ohm": "V/A", "coulomb": "A*s",
}
# The names of units that take prefixes, and of which symbols the prefixes make others.
_SPELLED_OUT = {"meter": "m", "second": "s", "gram": "g", "liter": "l", "newton": "N", "joule": "J",
                "watt": "W", "volt": "V", "ampere": "A", "kelvin": "K", "pascal": "Pa",
                "hertz": "Hz", "mole": "mol", "radian": "rad", "calorie": "cal"}
_PREFIXED = {"m": "kcdmun", "s": "mun", "g": "kmu", "l": "cdm", "L": "cdm", "C": "mun",
             **dict.fromkeys("N J W Wh V A Pa Hz mol eV cal bar ohm".split(), "kMGmun")}
_PREFIXES = {"k": "1e3", "M": "1e6", "G": "1e9", "c": "1e-2", "d": "1e-1", "m": "1e-3", "u": "1e-6",
             "n": "1e-9"}
_WORDS = {"kilo": "k", "mega": "M", "giga": "G", "centi": "c", "deci": "d", "milli": "m",
          "micro": "u", "nano": "n"}
PRODUCTS = ("um", "nm", "us", "ns", "ug", "cl", "dl")  # may be two variables, outside of \text{}
_PART = re.compile(r"([/*]?)([A-Za-z]+|[€£¥₹])(?:\^?(-?\d))?")


@functools.lru_cache(1024)
def parse(text: str) -> Unit | None:
  """Returns the bases and the factor of a unit such as "km/h", "square cm", "cm^2" or "degrees".

  None if any part of it is unknown, and for an empty text.
  """
  words = _spelled(text)
  exponents: dict[str, int] = {}
  factor, position = Fraction(1), 0
  for match in _PART.finditer(words):
    definition = _known(match[2])
    if definition is None or match.start() != position:
      return None
    position = match.end()
    power = int(match[3] or 1) * (-1 if match[1] == "/" else 1)
    for base, exponent in definition[0]:
      exponents[base] = exponents.get(base, 0) + power * exponent
    factor *= definition[1]**power
  if not words or position != len(words):
    return None
  return tuple(sorted((base, power) for base, power in exponents.items() if power)), factor


def _spelled(text: str) -> str:
  """Returns "m/s^2" for "meters per second squared": words, exponents, and one sign between."""
  text = re.sub(r"[{}.~\\]", "", text.replace("²", "^2").replace("³", "^3"))
  text = re.sub(r"\b(?:square|sq)\s+([A-Za-z]+)", r"\1^2", text)
  text = re.sub(r"\bcubic\s+([A-Za-z]+)", r"\1^3", text)
  text = re.sub(r"([A-Za-z]+)\s+squared\b", r"\1^2", text)
  text = re.sub(r"([A-Za-z]+)\s+cubed\b", r"\1^3", text)
  text = re.sub(r"\s*(?:/|\bper\b)\s*", "/", text.strip())
  return re.sub(r"\s*(?:\*|·|cdot|\s)\s*", "*", text)


@functools.lru_cache(1024)
def _known(word: str) -> Unit | None:
  """Returns bases and factor of one unit, in the singular or plural."""
  spellings = [word]
  if len(word) > 2:
    low = word.lower().replace("metre", "meter")
    spellings += [low, low.removesuffix("s"), low.removesuffix("es")]
  return next((unit for name in spellings if (unit := _unit(name)) is not None), None)


def _unit(name: str) -> Unit | None:
  """Returns bases and factor of a unit by its table, or by its prefix."""
  if name in _BASES:
    return ((name, 1),), Fraction(1)
  if name in _SPELLED_OUT:
    return _unit(_SPELLED_OUT[name])
  if name in _DEFINED:
    number, _, definition = _DEFINED[name].rpartition(" ")
    bases, factor = parse(definition)
    return bases, factor * Fraction(number or 1)
  word = next((word for word in _WORDS if name.startswith(word)), None)
  if word and name[len(word):] in _SPELLED_OUT:
    name = _WORDS[word] + _SPELLED_OUT[name[len(word):]]
  if name[:1] in _PREFIXED.get(name[1:], ""):
    bases, factor = _unit("coulomb" if name[1:] == "C" else name[1:])
    return bases, factor * Fraction(_PREFIXES[name[0]])
  return None
