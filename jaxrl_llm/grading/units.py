"""Units after a number: `5 km` is not `5 m`, and it is `5000 m`.

Only the units of school problems are known. Other words after a number ("12 apples") say nothing
about its value, and are ignored by whoever compares.
"""

import re

Unit = tuple[tuple[tuple[str, int], ...], float]  # ((base, exponent), ...), and the factor to it

_BASES = {
    "length": {"mm": 1e-3, "millimeter": 1e-3, "cm": 1e-2, "centimeter": 1e-2, "dm": 0.1, "m": 1.0,
               "meter": 1.0, "km": 1e3, "kilometer": 1e3, "in": 0.0254, "inch": 0.0254,
               "ft": 0.3048, "foot": 0.3048, "feet": 0.3048, "yd": 0.9144, "yard": 0.9144,
               "mi": 1609.344, "mile": 1609.344},
    "time": {"ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0,
             "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0},
    "mass": {"mg": 1e-6, "milligram": 1e-6, "g": 1e-3, "gram": 1e-3, "kg": 1.0, "kilogram": 1.0,
             "lb": 0.45359237, "pound": 0.45359237, "oz": 0.028349523125, "ounce": 0.028349523125},
    "volume": {"ml": 1e-3, "milliliter": 1e-3, "l": 1.0, "liter": 1.0, "litre": 1.0},
    "money": {"dollar": 1.0, "cent": 0.01},
    "angle": {"degree": 1.0, "deg": 1.0},
    "force": {"N": 1.0, "newton": 1.0}, "energy": {"J": 1.0, "joule": 1.0, "kJ": 1e3},
    "power": {"W": 1.0, "watt": 1.0, "kW": 1e3}, "potential": {"V": 1.0, "volt": 1.0},
    "current": {"A": 1.0, "ampere": 1.0}, "temperature": {"K": 1.0, "kelvin": 1.0},
    "pressure": {"Pa": 1.0, "pascal": 1.0, "kPa": 1e3}, "frequency": {"Hz": 1.0, "hertz": 1.0},
}
_KNOWN = {name: (base, factor) for base, names in _BASES.items() for name, factor in names.items()}
_PART = re.compile(r"([/*]?)([A-Za-z]+)(?:\^?(-?\d))?")


def parse(text: str) -> Unit | None:
  """Returns the bases and the factor of a unit such as "km/h", "square cm", "cm^2" or "degrees".

  None if any part of it is unknown, and for an empty text.
  """
  words = _spelled(text)
  exponents: dict[str, int] = {}
  factor, position = 1.0, 0
  for match in _PART.finditer(words):
    definition = _known(match[2])
    if definition is None or match.start() != position:
      return None
    position = match.end()
    power = int(match[3] or 1) * (-1 if match[1] == "/" else 1)
    exponents[definition[0]] = exponents.get(definition[0], 0) + power
    factor *= definition[1]**power
  if not words or position != len(words):
    return None
  return tuple(sorted((base, power) for base, power in exponents.items() if power)), factor


def _spelled(text: str) -> str:
  """Returns "m/s^2" for "meters per second squared": words, exponents, and one sign between."""
  text = re.sub(r"[{}.~\\]", "", text.replace("²", "^2").replace("³", "^3"))
  text = re.sub(r"\bmph\b", "mi/h", re.sub(r"\bkph\b", "km/h", text))
  text = re.sub(r"\b(?:square|sq)\s+([A-Za-z]+)", r"\1^2", text)
  text = re.sub(r"\bcubic\s+([A-Za-z]+)", r"\1^3", text)
  text = re.sub(r"([A-Za-z]+)\s+squared\b", r"\1^2", text)
  text = re.sub(r"([A-Za-z]+)\s+cubed\b", r"\1^3", text)
  text = re.sub(r"\s*(?:/|\bper\b)\s*", "/", text.strip())
  return re.sub(r"\s*(?:\*|·|cdot|\s)\s*", "*", text)


def _known(word: str) -> tuple[str, float] | None:
  """Returns (base, factor) of one unit, in the singular or plural."""
  spellings = [word]
  if len(word) > 2:
    low = word.lower().replace("metre", "meter")
    spellings += [low, low.removesuffix("s"), low.removesuffix("es")]
  return next((_KNOWN[name] for name in spellings if name in _KNOWN), None)
