"""Numbers in words: "twelve", "forty-two apples", "one hundred and five".

Rules: own derivation.
"""

import re


def in_digits(text: str) -> str:
  r"""Returns "2 solutions" for "two solutions" and "\text{two solutions}"; other texts as they are.

  Only a text that begins with a number in words is changed. "Two thirds", "one of them" and "two or
  three" stay.
  """
  match = _WORDED.fullmatch(text)
  if match is None:
    return text
  words = re.split(r"[\s-]+", match[2].casefold())
  count = 0
  while count < len(words) and _is_numeral(words, count):
    count += 1
  if not count or (value := _value(words[:count])) is None:
    return text
  rest = words[count:]
  if any(_NO_UNIT.fullmatch(word) for word in rest) or len(rest) > 4:
    return text
  return f"{match[1] or ''}{' '.join([str(value), *rest])}{match[3] or ''}"


def written_in_digits(text: str) -> str:
  """Returns a sentence with its numbers above twelve in digits; smaller words may count nothing."""
  def in_figures(match: re.Match) -> str:
    value = _value(re.split(r"[\s-]+", match[0].casefold()))
    return match[0] if value is None or value < 13 else str(value)

  return _RUN.sub(in_figures, text)


def _is_numeral(words: list[str], position: int) -> bool:
  if words[position] == "and":  # one hundred and five
    return words[position - 1] in _SCALES and words[position + 1:position + 2] != [] and (
        words[position + 1] in _UNITS or words[position + 1] in _TENS)
  return words[position] in _UNITS or words[position] in _TENS or words[position] in _SCALES


def _value(words: list[str]) -> int | None:
  """Returns the number; None for words in an order that is none, as "two three"."""
  total = group = 0
  last = None
  for word in words:
    if word == "and":
      continue
    kind = "unit" if word in _UNITS else "ten" if word in _TENS else "scale"
    if kind != "scale" and last in ("unit", kind):
      return None
    if kind == "unit" and last == "ten" and not 1 <= _UNITS.index(word) <= 9:
      return None
    if word == "hundred":
      group *= 100
    elif kind == "scale":
      total, group = total + group * _SCALES[word], 0
    else:
      group += _UNITS.index(word) if kind == "unit" else 10 * _TENS.index(word)
    last = kind
  return total + group


_UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
          " fifteen sixteen seventeen eighteen nineteen").split()
_TENS = "- ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_NAMES = "|".join([*_UNITS, *_TENS[1:], *_SCALES])
_RUN = re.compile(rf"(?i)\b(?:{_NAMES})(?:[\s-]+(?:and\s+)?(?:{_NAMES}))*\b"
                  r"(?![-\s]+(?:and\s+)?(?:a |point\b|half|third|quarter|[a-z]+ths?\b"
                  r"|dozen|percent))")
_WORDED = re.compile(r"\s*(\\text\s?\{\s*)?([A-Za-z]+(?:[\s-]+[A-Za-z]+){0,9})(\s*\})?[\s.]*")
# Words after which a number is another one, or none: "two thirds", "one of them", "two point five".
_NO_UNIT = re.compile(
    r"of|or|and|to|point|minus|plus|times|over|more|less|fewer|than|through|out|is|are|must|can"
    r"|hal(?:f|ves)|quarters?|(?:thir|four|fif|six|seven|eigh|nin|ten)(?:d|th)s?|[a-z]+(?:ieth|eenth"
    r"|dredth)s?|dozens?|squared|cubed|factorial|way|thing|hand")
