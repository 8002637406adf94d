"""Detects hedged numbers: by another number that is joined to them, by a bound, or by a denial.

Rules: own derivation; known cases are in tests/grading/answer_forms.jsonl.
"""

import re

from jaxrl_llm.grading.clauses import before_reason, without_brackets
from jaxrl_llm.grading.numerals import numbers
from jaxrl_llm.grading.quantities import Quantity, equal, quantity

HEDGE = "several"  # in the place of a number: there is none, and nothing before counts instead


def is_hedged(head: Quantity, rest: str) -> bool:
  """Returns whether another number is joined to the one before `rest`, or a bound is."""
  rest = re.sub(r"^\s*\(\s*(?=or\b|maybe\b|perhaps\b|possibly\b)", " ", rest)
  if any(pattern.match(rest) for pattern in (_BOUND_BEHIND, _RANGE_BEHIND, _REFUSED)):
    return True
  if (other := _POSSIBLE.match(rest)) and _offers_another(head, rest[other.end():]):
    return True
  if _BY_CASES.search(rest) or re.search(r"\b(?:otherwise|else)\b.*\d|\d.*\botherwise\b", rest):
    return True
  rest = without_brackets(before_reason(rest))
  for join in _JOIN.finditer(rest):
    before, after = rest[:join.start()], rest[join.end():]
    if re.search(r"\d", before):
      return False
    sign = join[0].strip()
    if (sign in (",", ";") and not _is_item(after)) or (sign == "and" and _DENIAL.match(after)):
      continue
    if _offers_another(head, after):
      return True
  return False


def _offers_another(head: Quantity, after: str) -> bool:
  """Returns whether the part after a joining word has a number that is not the one before."""
  candidate = after.split(",")[0]
  candidate = candidate.rpartition("=")[2]  # of "5, 2 + 3 = 5" the result
  free_numbers = [number.value for number in numbers(candidate) if number.is_free]
  if any(not equal(head, value) for value in free_numbers):
    return True
  return bool(_NUMERAL.match(after)) and not _ONE_OF.match(after)


def _is_item(after: str) -> bool:
  """Returns whether what follows a comma is another item, and no remark with a number in it."""
  candidate = re.split(r"[,;]|\sand\s|\sor\s", after.strip(), maxsplit=1)[0]
  return quantity(candidate.rstrip(" .")) is not None or bool(_ITEM.match(after.strip()))


def with_afterthoughts(direct: Quantity | str, rest: list[str]) -> Quantity | str:
  """Returns the number that a line begins with, unless the next sentence offers another."""
  if rest and not isinstance(direct, str) and _AFTERTHOUGHT.match(rest[0]):
    free_numbers = [number.value for number in numbers(rest[0]) if number.is_free]
    if any(not equal(direct, value) for value in free_numbers):
      return HEDGE
  return direct


def ends_as_bound(text: str) -> bool:
  """Returns whether a quantity has a bound for its unit: "5 minimum"."""
  return bool(_BOUND_WORDS.search(text))


def same(values: list[Quantity | None]) -> Quantity | None:
  """Returns the value that all have, or None."""
  first = values[0]
  if first is None or any(value is None or not equal(first, value) for value in values):
    return None
  return first


_BOUND_BEHIND = re.compile(
    r"\s*,?\s*(?:(?:or|and)\s+(?:more|less|fewer|greater|higher|lower|above|below|up|over|under"
    r"|larger"
    r"|smaller|older|younger|later|earlier|beyond|bigger|better|worse)\b|\+|at (?:least|most)\b"
    r"|(?:more|fewer|less) or (?:more|fewer|less)\b)")
_BOUND_WORDS = re.compile(r"\b(?:minimum|maximum|more|fewer|less|least|most|plus|upward|upwards"
                          r"|above"
                          r"|below)\s*\.?$")
_REFUSED = re.compile(r"[^.,;\d]{0,30}?\b(?:(?:is|are|was|were|be|seems|looks) (?:\w+ )?"
                      r"(?:not(?= (?:an? |the |my |our )?(?:\w+ )?(?:answer|solution|right|correct"
                      r"|true|valid|possible|enough|it|what)\b|\W*$)|wrong|incorrect"
                      r"|false|impossible|too|ruled out|excluded)\b|isn['’]t|aren['’]t|cannot"
                      r"|can['’]t)")
_RANGE_BEHIND = re.compile(
    r"\s*(?:[-–—]|to|through|until|out of|of|→|⇒|->|=>|:(?=\d)|/|\|)\s*(?:about "
    r"|maybe )?[$€£]?-?\d"
    r"|\s*to the power\b|\s*[rR]\s?\d|\s*remainder\b|\s*(?:plus|minus|times)\b.*\d")
_BY_CASES = re.compile(r"(?:,|;|\band|\bor|\bbut)\s*(?:it is |is )?\$?-?\d[\d.,]*\s*(?:\w+\s)?"
                       r"(?:if|when|where|otherwise)\b")
_POSSIBLE = re.compile(r"[^.\d]{0,20}[,;.]?\s*\b(?:but|though|although|or|however|alternatively)\b"
                       r"[^.\d]{0,30}\b(?:could|might|may|can)\b[^.\d$€£]{0,30}")
_AFTERTHOUGHT = re.compile(r"\s*(?:or|maybe|perhaps|possibly|alternatively|otherwise|it (?:could"
                           r"|might)"
                           r"|could|\$?\d[\d.,]*\s*\?)", re.IGNORECASE)
_JOIN = re.compile(r"[,;]|\s(?:or|and)\b|[/|&、]|\s(?:oder|und|et|ou|y)\s|或|和")
_DENIAL = re.compile(r"\s*(?:not|never|no|nothing)\b")
_NUMERAL = re.compile(r"\s*(?:maybe |perhaps |possibly )?(?:none|zero|one|two|three|four|five|six"
                      r"|seven"
                      r"|eight|nine|ten|eleven|twelve|nothing|(?:a|one) (?:half|third|quarter))\b")
_ONE_OF = re.compile(r"\s*one\s+(?:of|more|can|could)\b")
_ITEM = re.compile(r"(?:or|and|maybe|perhaps|possibly|alternatively|otherwise|else)\b|\d[^a-z]*=")
