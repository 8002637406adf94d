r"""The number that a statement concludes: "48 in April and 24 in May, so 72 in total" is 72.

A statement is the text after the mark of an answer, or the last sentence of a text without a
mark. If it begins with a number, that is the answer ("72 clips, because 48 + 24 = 72"); of a
sentence it is the number of the clause that concludes (grading/clauses.py). Several numbers that
are joined are a hedge (grading/hedges.py); a bound, a denied number and a part of a formula are no
answer (grading/numerals.py). The rules are an own derivation; tests/grading/answer_forms.jsonl has
known cases.
"""

import itertools
import re

from jaxrl_llm.grading import clauses
from jaxrl_llm.grading.clauses import CUE, sentences
from jaxrl_llm.grading.extraction import unwrap
from jaxrl_llm.grading.hedges import HEDGE, ends_as_bound, is_hedged, same, with_afterthoughts
from jaxrl_llm.grading.latex import FONT, undecorated
from jaxrl_llm.grading.numerals import Number, alternatives, joined, numbers, readable
from jaxrl_llm.grading.parts import bounds, unsolved
from jaxrl_llm.grading.quantities import Quantity, equal, quantity

LONGEST = 1000  # characters at the end of a line that are read


def concluded(statement: str) -> Quantity | None:
  """Returns the number of a statement, or None for a hedge, a bound, a formula, or no number.

  Args:
    statement: the text after the mark of an answer, perhaps with the lines below it, `unmarked`.
  """
  lines = [line.strip() for line in readable(statement).splitlines() if re.search(r"\d", line)]
  if not lines:
    return None
  if _is_list(lines):
    return same([_value(_line(_BULLET.sub("", line, count=1))[0]) for line in lines[:20]])
  number, direct = _line(lines[0])
  if direct and number is not None:
    return _value(with_afterthoughts(number, lines[1:2]))
  if number == HEDGE:
    return None
  for line in reversed(lines[1:]):  # the reasoning continues: its last conclusion counts
    if CUE.search(line) or "=" in line:
      return _value(_line(line)[0])
  return _value(number)


def last_concluded(text: str) -> Quantity | None:
  """Returns the number that the last sentence with a number concludes; None if it has none.

  Args:
    text: all of an answer, `unmarked`.
  """
  lines = [line[-LONGEST:] for line in readable(text).splitlines() if re.search(r"\d", line)]
  if not lines:
    return None
  number, direct = _line([part for part in sentences(lines[-1]) if re.search(r"\d", part)][-1])
  if direct and _BULLET.match(lines[-1]) and len(lines) > 1 and _BULLET.match(lines[-2]):
    return concluded("\n".join(lines[-2:]))
  return _value(number)


def worded(box: str) -> Quantity | None:
  r"""Returns the number of a sentence in a box, \text{Tom has 15 apples}; None with a formula."""
  plain = " ".join(unwrap(undecorated(box), FONT).split())
  if not re.fullmatch(r"[\w\s,.'’!-]*", plain) or "_" in plain or bounds(box):
    return None
  return concluded(plain)


def _is_list(lines: list[str]) -> bool:
  """Returns whether the lines begin with two items of a list that are numbers."""
  first = [_BULLET.sub("", line, count=1) for line in lines[:2]]
  marked = [bool(_BULLET.match(line)) for line in lines[:2]]
  bare = [quantity(text.strip(" .")) is not None for text in first]
  return len(lines) > 1 and all(bare) and marked[0] == marked[1]


def _value(number: Quantity | str | None) -> Quantity | None:
  return None if isinstance(number, str) else number


def _line(line: str) -> tuple[Quantity | str | None, bool]:
  """Returns what a line states, and whether it begins with it."""
  if _NO_ANSWER.search(line):
    return HEDGE, True
  first, *later = sentences(line)
  direct = _direct(first)
  numeric_sentences = [sentence for sentence in later if re.search(r"\d", sentence)]
  if direct is not None:
    narrates = not isinstance(direct, str) and _VERB.search(first)
    if not (narrates and any(CUE.search(sentence) for sentence in numeric_sentences)):
      return with_afterthoughts(direct, numeric_sentences), True
  for sentence in reversed([first, *numeric_sentences]):
    if (number := _sentence(sentence)) is not None:
      return number, False
  return None, False


def _direct(sentence: str) -> Quantity | str | None:
  """Returns the number that a sentence begins with, as "72", "72 clips because" or "x = 72"."""
  text = _FILLER.sub("", sentence.strip(), count=1).strip()
  if enclosed := _ENCLOSED.fullmatch(text):
    text = enclosed[1]
  if (number := quantity(text)) is not None:
    return HEDGE if ends_as_bound(text) else number
  for end in _HEAD_END.finditer(text):
    head, remainder = quantity(text[:end.start()]), text[end.start():]
    if head is not None:
      clause = re.split(r"[,;(]", clauses.before_reason(remainder), maxsplit=1)[0]
      if _RELATION.search(clause) or clauses.concludes_later(remainder):
        return None
      return HEDGE if is_hedged(head, remainder) else head
    if re.search(r"\d.*\d", text[:end.start()]):
      return None
  return None


def _sentence(sentence: str) -> Quantity | str | None:
  """Returns the number that a sentence concludes, `HEDGE`, or None if it has no number."""
  text = clauses.last_clause(clauses.without_remarks(sentence))
  if verb := clauses.verb_with_number(text):
    if clauses.lists_clauses(text, verb):
      return HEDGE
    text = text[verb.end():]
  if _RELATION.search(text):
    return _equation(text)
  direct = _direct(text)
  return _chosen(numbers(text), text) if direct is None else direct


def _equation(text: str) -> Quantity | str | None:
  """Returns the right side of a text's last equation; of x = 3, y = 5 there is none."""
  assigned = [quantity(match[1].strip(" .")) for match in _ASSIGNED.finditer(text)]
  if len(assigned) > 1 and same(assigned) is None:
    return HEDGE
  *_, sign = _RELATION.finditer(text)
  lhs, rhs = text[:sign.start()], text[sign.end():]
  if unsolved(re.split(r"[,;:=]|\s(?:(?:so|and|or|is|an?)\s)+", lhs)[-1]):
    return HEDGE
  before = quantity(_FILLER.sub("", lhs.strip(), count=1))
  after = _direct(rhs)
  if after is None:
    after = _chosen(numbers(rhs), rhs)
  if before is None:
    return after
  if after is None or isinstance(after, str) or (sign[0] != "=" and not equal(before, after)):
    return before
  # "$18 / 9 hours = $2 per hour": the left side has the unit of its last number.
  return after if equal(before, after) or before.value == after.value else HEDGE


def _chosen(stated: list[Number], text: str) -> Quantity | str | None:
  """Returns the number of a clause that counts: the free one, or of several the last."""
  stated = [number for number in stated if not number.ordinal]
  if not stated:
    return None
  usable = [number for number in stated if number.is_free] or [
      number for number in stated if number.stands_alone and not number.bounded]
  if not usable or alternatives(stated, text) or _side_by_side(stated, text):
    return HEDGE
  values = [number.value for number in usable]
  if same([*values]) is not None:
    return values[-1]
  last, before = usable[-1], usable[-2]
  between = text[before.end:last.start]
  if not between.strip():
    return HEDGE  # 5 6
  if joined(between):
    clause = _JOINT.split(between)[0]  # "5 left and 6 left" concludes twice
    if CUE.search(clause) or not CUE.search(text[before.end:]):
      return HEDGE
  return values[-1]


def _side_by_side(stated: list[Number], text: str) -> bool:
  """Returns whether two numbers that differ have only white space between them: "2 2 1+"."""
  return any(not text[first.end:second.start].strip() and not equal(first.value, second.value)
             for first, second in itertools.pairwise(stated)
             if not (first.circumstance or second.circumstance))


_ENCLOSED = re.compile(r"[(\[{]([^()\[\]{}]*)[)\]}]\.?")
_BULLET = re.compile(r"\s{0,8}(?:[-*•]\s+|\(?\d{1,2}[.)]\s+(?=\S))")
_FILLER = re.compile(
    r"(?:(?:is|are|was|be|exactly|approximately|about|around|roughly|only|just|simply|nearly"
    r"|almost"
    r"|therefore|thus|hence|so|indeed|clearly|probably|likely|possibly|now|then|equal to|equals"
    r"|a total of|the number|the value|it is|it's|that is|there are|we get|we have"
    r"|[a-zA-Z]\s{0,3}="
    r"(?!.*=)|[=:≈~,]|\\approx)"
    r"[\s,:]{0,4})*", re.IGNORECASE)
_HEAD_END = re.compile(
    r",(?!\d{3}(?!\d))|[;:?。]|(?<=[^\d\s])!|\.(?=\s|$)|\s?\(|\s[-–—]+\s|[–—]|(?<=\d)-(?=\d)"
    r"|\s?[|&≈]\s?|\s?/(?=\s?\d+\s?/)|/(?!\s?\d)|(?<!\d)/"
    r"|\s(?:because|since|as|which|where|when|who|that|so|thus|therefore|not|rather|instead|after"
    r"|from|or"
    r"|and|but|for|to|in|at|by|on|per|of|out|with|until|before|if|while|is|are|was|were|has|have"
    r"|isn['’]t|aren['’]t|cannot|can['’]t"
    r"|more|less|fewer|greater|i\.e|every|each|plus|minus|minimum|maximum)\b|\s?→")
_NO_ANSWER = re.compile(r"(?i)\b(?:can(?:not| not|['’]t|'t) (?:be )?determined?|no answer"
                        r"|not enough information"
                        r"|undefined|insufficient)\b")
_VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|flew|left|came|went|gave|ate|bought|sold"
                   r"|lost"
                   r"|got|there|[a-z]{3,}ed)\b")
_JOINT = re.compile(r"\band\b|\bor\b|[,;&|]")
_RELATION = re.compile(r"(?<![<>!≤≥≠:])=(?![=>])|≈|\\approx(?![a-zA-Z])")
_ASSIGNED = re.compile(r"(?:^|[\s,;$(])[a-zA-Z](?:_\{?\w\}?)?\s*=\s*([^=,;]+?)(?=[,;=]|\s(?:and"
                       r"|or)\b|$)")
