r"""The numbers in a sentence, each with what its surroundings say about it.

"After 3 days more than 20 of the 60 cups remain": 3 and 60 are circumstances, 20 is bounded. Rules:
own derivation.
"""

import dataclasses
import itertools
import re

from jaxrl_llm.grading import spellings, units
from jaxrl_llm.grading.quantities import (
  FRACTION,
  GOES_ON,
  IN_FORMULA,
  NUMBER,
  Quantity,
  equal,
  quantity,
)


@dataclasses.dataclass(frozen=True)
class Number:
  """A number in a sentence.

  Attributes:
    value: with its percent sign, its scale and a known unit.
    start, end: ends of the digits in the sentence.
    stands_alone: it is no part of a formula, a range, a time or a name.
    bounded: "more than", "at least", "not" or a sign of an inequality is before it.
    circumstance: a preposition before it makes it a side matter ("for 3 days", "the 16 glasses").
    ordinal: 3rd, or a label such as "step 3".
  """

  value: Quantity
  start: int
  end: int
  stands_alone: bool
  bounded: bool
  circumstance: bool
  ordinal: bool

  @property
  def is_free(self) -> bool:
    """Returns whether the number may be what the sentence is about."""
    return self.stands_alone and not (self.bounded or self.circumstance or self.ordinal)


def numbers(text: str) -> list[Number]:
  """Returns the numbers of a `readable` text, in order, at most the last 50."""
  out: list[Number] = []
  for match in [*_SCANNED.finditer(text)][-50:]:
    value = _value(text, match)
    if value is None or _EXPONENT.search(text, max(0, match.start() - 4), match.start()):
      continue
    before = text[max(0, match.start() - 60):match.start()]
    after = text[match.end():match.end() + 40]
    inherits = out and out[-1].circumstance and _PAIR.fullmatch(text[out[-1].end:match.start()])
    out.append(Number(
        value, match.start(), match.end(),
        stands_alone=not (any(pattern.search(before) for pattern in _FORMULA_BEFORE)
                          or any(pattern.match(after) for pattern in _FORMULA_AFTER)),
        bounded=bool(_BOUND.search(before) or _BOUND_AFTER.match(after)),
        circumstance=bool(inherits or _CIRCUMSTANCE.search(before) or _COMPARED.match(after)
                          or _NAME.search(before)),
        ordinal=bool(_ORDINAL.match(after) or _LABEL.search(before))))
  return out


def readable(text: str) -> str:
  """Returns a text whose fractions and minus signs `NUMBER` reads."""
  text = spellings.dollars(spellings.without_apostrophes(text))
  text = _NEGATIVE.sub(r"\1-", re.sub("[½¼¾⅓⅔]", _spelled, text))
  return FRACTION.sub(r" \1\2/\3", text.replace("−", "-").replace("{,}", ",").replace(r"\$", "$")
                      .replace("²", "^2").replace("³", "^3"))


def _spelled(sign: re.Match) -> str:
  return {"½": " 1/2", "¼": " 1/4", "¾": " 3/4", "⅓": " 1/3", "⅔": " 2/3"}[sign[0]]


def alternatives(stated: list[Number], text: str) -> bool:
  """Returns whether two numbers of a text that differ are joined by "or": "5 or maybe 6"."""
  for first, second in itertools.pairwise(stated):
    between = text[first.end:second.start]
    if _OR.fullmatch(between) and not equal(first.value, second.value):
      if not (first.circumstance or _DENIED.search(between)):
        return True
  return False


def joined(between: str) -> bool:
  """Returns whether the text between two numbers joins two statements."""
  return bool(re.search(r"\band\b|[,;&|/]|\bor\b", between))


def _value(text: str, match: re.Match) -> Quantity | None:
  """Returns a number with the percent sign, scale or known unit after it."""
  money = _MONEY.search(text, max(0, match.start() - 3), match.start())
  digits = text[money.start() if money else match.start():match.end()]
  suffix = _BEHIND.match(text, match.end())[0]
  words = suffix.split(" ")
  for count in range(len(words), 0, -1):
    tail = " ".join(words[:count])
    value = quantity(digits + tail)
    if value is not None and (value.percent or _SCALE.search(tail) or units.parse(value.unit)):
      return value
  return quantity(digits)


_SCANNED = re.compile(r"(?:(?<![\w).\]}])[-+])?(?<![\w.,/^])\d{1,3}\s\d{1,3}/\d{1,3}(?![\d/])"
                      rf"|{NUMBER.pattern}")
_NEGATIVE = re.compile(r"(?i)(^|\b(?:is|answer)[: ]\s*|[:=]\s*|(?<=\n))(?:minus"
                       r"|negative)\s+(?=\$?\d)", re.M)
_FUNCTION_BEFORE = re.compile(
    r"(?:[a-zA-Z_]|\b(?:twice|half(?: of)?|double|triple|thrice|(?:third|quarter|fraction|part"
    r"|root|square|cube"
    r"|power|factorial|logarithm|reciprocal|opposite|negative|multiple) of|log|ln|sin|cos|tan"
    r"|sqrt|minus"
    r"|negative|plus)\s(?:the )?)\(?$", re.IGNORECASE)
_FUNCTION_AFTER = re.compile(r"\s*(?:±|\+/-|[<>≤≥≠→⇒]|->|=>|!=|\\(?:to|leq?|geq?|neq?|lt|gt|mid"
                             r"|Rightarrow"
                             r"|rightarrow)(?![a-zA-Z])|(?:squared|cubed|factorial|to the power"
                             r"|plus or)\b)")
_EXPONENT = re.compile(r"[a-zA-Z}]\s?\^\{?$")
_MONEY = re.compile(r"-?[$€£¥]-?$")
_BEHIND = re.compile(r"\s?(?:%|°)?(?:\s?[A-Za-z]{1,12}(?:\s?/\s?[A-Za-z]{1,8})?(?:\^\d)?){0,3}")
_SCALE = re.compile(r"hundred|thousand|million|billion|trillion")
_RANGE_BEFORE = re.compile(r"\d\s*%?\s*(?:[-–—]|\bto\b|\bthrough\b|\buntil\b|\bout of\b|:"
                           r"|/)\s*\$?$"
                           r"|\bbetween\s+\$?[\d.,]+\s*\w*\s+and\s+\$?$|±\s*$|\\pm\s*$")
_RANGE_AFTER = re.compile(r"\s*(?:[-–—]|to|through|until|out of|:)\s*\$?\d|:\d|\s*/\s*\d")
_OPERATOR_BEFORE = re.compile(r"√\s*\(?$|[\w)}]\s*[-+*/×÷·⋅^]{1,2}\s*$|[\w)}]\s(?:x|times)\s$"
                              r"|\\(?:times|cdot|div)\s*$")
_OPERATOR_AFTER = re.compile(r"\s*(?:[+*×÷·⋅^!]\s*[\w(\\$-]|[-/]\s*[\d(\\]|x\s*\d|\\(?:times|cdot"
                             r"|div|pm|sqrt|pi))"
                             r"|[a-zA-Z](?![a-zA-Z])|\s[a-z](?=\s*(?:[=+*^.]|$))|_|\s?times\s\d"
                             r"|\+")
_FORMULA_BEFORE = (_RANGE_BEFORE, _FUNCTION_BEFORE, _OPERATOR_BEFORE, IN_FORMULA)
_FORMULA_AFTER = (_RANGE_AFTER, _FUNCTION_AFTER, _OPERATOR_AFTER, GOES_ON)
_BOUND = re.compile(
    r"(?:\b(?:more|less|fewer|greater|larger|higher|smaller|lower|bigger|older|younger"
    r"|other) than(?: or equal to)?"
    r"|\bat (?:least|most)|\bup to|\bover|\bunder|\babove|\bbelow|\bexceed(?:s|ing)?|\bbeyond"
    r"|\bbetween"
    r"|\bnot|n't|n’t|\bcannot be|\bnever|\bnor|\bneither|\brather than|\binstead of|\bwithout"
    r"|\bdivides|\bdivisible by|\bmultiples? of|\bmod"
    r"|[<>≤≥≠∤]=?|!=|\\(?:leq?|geq?|neq?|lt|gt|nmid|mid|not=?|pmod)(?:slant)?\s?)"
    r"(?:\s{1,3}(?:be|equal|to|the|a|an|exactly|simply|just|only|about|approximately|been))*"
    r"\s{0,3}[$€£(]{0,2}-?\s?$")
_BOUND_AFTER = re.compile(
    r"\s*(?:\w+\s+){0,2}?(?:times (?:as|more|the)\b|(?:or|and)\s+(?:more|less|fewer|greater|higher"
    r"|lower|above|below|up|over|under|larger|smaller|older|younger|later|earlier|beyond)\b"
    r"|at (?:least|most)\b)|\+(?!\s*\d)|\s*(?:is|was|are)\s(?:\w+\s)?(?:not|wrong|incorrect"
    r"|false)\b"
    r"|\s*(?:isn|wasn)['’]t|[^.\d]{0,20}\bbut (?:that|this|it)(?:\sis|\swas|['’]s)\s(?:\w+\s)?"
    r"(?:wrong|incorrect|false|not)\b")
_CIRCUMSTANCE = re.compile(
    r"(?:\b(?:for|at|of) (?:the|his|her|their|its|all|each|every|these|those|both) (?:\w+ )?"
    r"|\b(?:for|at)\s(?![$€£])|\bout of (?:the |his |her |their |its )?|\b(?:from|with|after"
    r"|before|in|per|every|each|within|during|among|adding|subtracting"
    r"|dividing|multiplying|by|times|into|given|using|if"
    r"|when|while|than|against|other|since|because)\s|\b(?:on|the|all|these|those|his|her|their"
    r"|its|both)\s(?![$€£])"
    r"|(?<!needs )(?<!need )(?<!has )(?<!have )(?<!had )(?<!able )"
    r"\bto (?!be\b|get\b|give\b|obtain\b|yield\b|about\b)[a-z]{2,12}\s"
    r"|\b(?:sum|product|difference|average|mean|ratio|half|third|quarter|double|twice|percent"
    r"|[%])\s"
    r"of\s(?:the )?)"
    r"(?:(?:a|an|the|his|her|their|all|each|these|first|last|next|other|only|original|initial"
    r"|remaining)\s){0,3}[$€£]?$",
    re.IGNORECASE)
_COMPARED = re.compile(r"\s*(?:\w+\s+){0,2}?(?:more|less|fewer|higher|lower|larger|greater|smaller"
                       r"|older|younger|taller|shorter|longer) than\b"
                       r"|\s*\w+\s+(?:ago|from now)\b")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_LABEL = re.compile(r"(?i:\b(?:step|steps|question|part|case|method|figure|chapter|page|problem"
                    r"|example"
                    r"|exercise|equation)\s)$")
_NAME = re.compile(r"(?i:\b(?:week|day|year|grade|room|number)\s|#)$")
_PAIR = re.compile(r"\s?\w{0,15}\s?\w{0,15}\s?(?:and|&|or|to)\s(?:the )?\$?")
_OR = re.compile(r"[\s,]*(?:[%$\w']+\s+){0,3}?,?\s*(?:\b(?:or|oder|ou)\b|/|\|"
                 r"|或)\s*(?:[\w']+\s+){0,4}?[$€£(]?\s?"
                 r"|[\s,]*or[\s,]+(?:[\w']+[\s,]+){0,4}?[$€£]?")
_DENIED = re.compile(r"\bnot\b|\brather\b")
