r"""The number that a statement concludes: "48 in April and 24 in May, so 72 in total" is 72.

A statement is what stands behind the mark of an answer, or the last sentence of a text without a
mark. If it begins with a number, that is the answer ("72 clips, because 48 + 24 = 72"); of a
sentence it is the number of the clause that concludes. Several numbers that are joined are a hedge,
and a bound ("more than 5"), a denied number and a part of a formula are no answer. The rules are an
own derivation; tests/grading/answer_forms.jsonl has known cases.
"""

import re

from jaxrl_llm.grading.extraction import unwrap
from jaxrl_llm.grading.latex import FONT, undecorated
from jaxrl_llm.grading.numerals import Number, alternatives, joined, numbers, readable
from jaxrl_llm.grading.parts import unsolved
from jaxrl_llm.grading.quantities import Quantity, equal, quantity

LONGEST = 1000  # characters at the end of a line that are read
HEDGE = "several"  # in the place of a number: there is none, and nothing before counts instead


def concluded(statement: str) -> Quantity | None:
  """Returns the number of a statement, or None for a hedge, a bound, a formula, or no number.

  Args:
    statement: what follows the mark of an answer, perhaps with the lines behind it, `unmarked`.
  """
  lines = [line.strip() for line in readable(statement).splitlines() if re.search(r"\d", line)]
  if not lines:
    return None
  if _is_list(lines):
    return _same([_value(_line(_BULLET.sub("", line, count=1))) for line in lines[:20]])
  found, direct = _line_and_way(lines[0])
  if direct and found is not None:
    return _value(_with_afterthoughts(found, lines[1:2]))
  if found == HEDGE:
    return None
  for line in reversed(lines[1:]):  # the reasoning goes on: its last conclusion counts
    if _CUE.search(line) or "=" in line:
      return _value(_line(line))
  return _value(found)


def last_concluded(text: str) -> Quantity | None:
  """Returns the number that the last sentence with a number concludes; None if it has none.

  Args:
    text: all of an answer, `unmarked`.
  """
  lines = [line[-LONGEST:] for line in readable(text).splitlines() if re.search(r"\d", line)]
  if not lines:
    return None
  sentences = [part for part in _sentences(lines[-1]) if re.search(r"\d", part)]
  found, direct = _line_and_way(sentences[-1])
  if direct and _BULLET.match(lines[-1]) and len(lines) > 1 and _BULLET.match(lines[-2]):
    return concluded("\n".join(lines[-2:]))
  return _value(found)


def worded(box: str) -> Quantity | None:
  r"""Returns the number of a sentence in a box, \text{Tom has 15 apples}; None with a formula."""
  plain = unwrap(undecorated(box), FONT)
  if not re.fullmatch(r"[\w\s,.'’!-]*", plain) or "_" in plain:
    return None
  return concluded(plain)


def _is_list(lines: list[str]) -> bool:
  """Returns whether all lines are items of a list that are numbers."""
  items = [_BULLET.sub("", line, count=1) for line in lines]
  marked = [bool(_BULLET.match(line)) for line in lines]
  if len(lines) < 2:
    return False
  bare = [quantity(item.strip(" .")) is not None for item in items]
  return bare[0] and bare[1] and (marked[0] == marked[1])


def _same(values: list[Quantity | None]) -> Quantity | None:
  """Returns the value that all have, or None."""
  first = values[0]
  if first is None or any(value is None or not equal(first, value) for value in values):
    return None
  return first


def _value(found: Quantity | str | None) -> Quantity | None:
  return None if isinstance(found, str) else found


def _line(line: str) -> Quantity | str | None:
  return _line_and_way(line)[0]


def _line_and_way(line: str) -> tuple[Quantity | str | None, bool]:
  """Returns what a line states, and whether it begins with it."""
  if _NO_ANSWER.search(line):
    return HEDGE, True
  sentences = _sentences(line)
  direct = _direct(sentences[0])
  rest = [sentence for sentence in sentences[1:] if re.search(r"\d", sentence)]
  if direct is not None:
    narrates = not isinstance(direct, str) and _VERB.search(sentences[0])
    if not (narrates and any(_CUE.search(sentence) for sentence in rest)):
      return _with_afterthoughts(direct, rest), True
  for sentence in reversed(rest or sentences[:1]):
    if (found := _sentence(sentence)) is not None:
      return found, False
  return (_sentence(sentences[0]) if rest else None), False


def _with_afterthoughts(direct: Quantity | str, rest: list[str]) -> Quantity | str:
  """Returns the number that a line begins with, unless the next sentence offers another."""
  if rest and not isinstance(direct, str) and _AFTERTHOUGHT.match(rest[0]):
    others = [one.value for one in numbers(rest[0]) if one.is_free]
    if any(not equal(direct, other) for other in others):
      return HEDGE
  return direct


def _sentences(line: str) -> list[str]:
  line = _ABBREVIATION.sub(" that is ", line)
  return [part for part in _SENTENCE_END.split(line) if part.strip()] or [line]


def _direct(sentence: str) -> Quantity | str | None:
  """Returns the number that a sentence begins with, as "72", "72 clips because" or "x = 72"."""
  text = _FILLER.sub("", sentence.strip(), count=1).strip()
  if enclosed := _ENCLOSED.fullmatch(text):
    text = enclosed[1]
  if (whole := quantity(text)) is not None:
    return whole if not _BOUND_WORDS.search(text) else HEDGE
  for end in _HEAD_END.finditer(text):
    head = quantity(text[:end.start()])
    if head is None:
      if re.search(r"\d.*\d", text[:end.start()]):
        return None
      continue
    rest = text[end.start():]
    reason = _REASON.search(rest)
    clause = re.split(r"[,;(]", rest[:reason.start()] if reason else rest, maxsplit=1)[0]
    if _RELATION.search(clause) or _concludes_later(rest):
      return None
    return HEDGE if _is_hedged(head, rest) else head
  return None


def _concludes_later(rest: str) -> bool:
  """Returns whether the words behind a number go on to a conclusion with another one."""
  reason = _REASON.search(rest)
  cues = [cue for cue in _CONCLUSION.finditer(rest, 0, reason.start() if reason else len(rest))
          if cue[0] not in ("that is", "i.e.")]  # these say the same again
  cues += [verb for verb in _VERB_BEFORE_NUMBER.finditer(
      rest, 0, reason.start() if reason else len(rest)) if not joined(rest[:verb.start()])]
  if (remains := _REMAINS.search(rest)) and not _CUE.search(rest[:remains.start()]):
    return True
  return any(any(one.is_free for one in numbers(rest[cue.end():])) for cue in cues[-2:])


def _is_hedged(head: Quantity, rest: str) -> bool:
  """Returns whether another number is joined to the one before `rest`, or a bound is."""
  rest = re.sub(r"^\s*\(\s*(?=or\b|maybe\b|perhaps\b|possibly\b)", " ", rest)
  if _BOUND_BEHIND.match(rest) or _RANGE_BEHIND.match(rest):
    return True
  if _REFUSED.match(rest):
    return True
  if _BY_CASES.search(rest):
    return True
  if re.search(r"\b(?:otherwise|else)\b", rest) and re.search(r"\d", rest):
    return True
  reason = _REASON.search(rest)
  rest = _BRACKETS.sub("", rest[:reason.start()] if reason else rest)
  for join in _JOIN.finditer(rest):
    before, after = rest[:join.start()], rest[join.end():]
    if re.search(r"\d", before):
      return False
    if join[0].strip() in (",", ";") and not _is_item(after):
      continue
    if join[0].strip() == "and" and _NEGATION.match(after):
      continue
    others = [one for one in numbers(after.split(",")[0]) if one.is_free]
    if "=" in after.split(",")[0] and (result := _sentence(after)) is not None:
      return isinstance(result, str) or not equal(head, result)
    if any(not equal(head, other.value) for other in others):
      return True
    if _NUMERAL.match(after) and not _is_unit(after):
      return True
  return False


def _is_item(after: str) -> bool:
  """Returns whether what follows a comma is another item, and no remark with a number in it."""
  item = re.split(r"[,;]|\sand\s|\sor\s", after.strip(), maxsplit=1)[0]
  if quantity(item.rstrip(" .")) is not None:
    return True
  return bool(re.match(r"(?:or|and|maybe|perhaps|possibly|alternatively|otherwise|else)\b|\d[^a-z]*=",
                       after.strip()))


def _is_unit(after: str) -> bool:
  return bool(re.match(r"\s*one\s+(?:of|more|can|could)\b", after))


def _sentence(sentence: str) -> Quantity | str | None:
  """Returns the number that a sentence concludes, `HEDGE`, or None if it has no number."""
  text = _BRACKETS.sub("", sentence)
  if not re.search(r"\d", text):
    text = re.sub(r"\((\$?-?\d[\d,.]*)\)", r"\1", sentence)  # twelve (12) apples
  if (parts := _BREAKDOWN.split(text, maxsplit=1))[1:] and len(numbers(parts[1])) > 1:
    text = parts[0] if any(one.is_free for one in numbers(parts[0])) else text
  reason = _REASON.search(text)
  if reason and any(one.is_free for one in numbers(text[:reason.start()])):
    text = text[:reason.start()]
  for cue in reversed([*_CONCLUSION.finditer(text)]):
    if re.search(r"\d", text[cue.end():]) and not _is_arrow(text, cue):
      text = text[cue.end():]
      break
  opening = _OPENING_CLAUSE.match(text)
  if opening and any(one.is_free for one in numbers(text[opening.end():])):
    text = text[opening.end():]
  for verb in reversed([*_VERB_BEFORE_NUMBER.finditer(text)]):
    if any(one.is_free for one in numbers(text[verb.end():])):
      if _is_list_of_clauses(text, verb):
        return HEDGE
      text = text[verb.end():]
      break
  if _RELATION.search(text):
    return _equation(text)
  if (direct := _direct(text)) is not None:
    return direct
  return _chosen(numbers(text), text)


def _is_list_of_clauses(text: str, verb: re.Match) -> bool:
  """Returns whether the clause of a verb is joined to one with a number: "Tom is 5 and Ann is 6"."""
  before = numbers(text[:verb.start()])
  return bool(before) and before[-1].is_free and joined(text[before[-1].end:verb.start()])


def _is_arrow(text: str, cue: re.Match) -> bool:
  """Returns whether a sign is a map from one number to another, 4 -> 5, and no conclusion."""
  return not cue[0].strip()[:1].isalpha() and quantity(text[:cue.start()]) is not None


def _equation(text: str) -> Quantity | str | None:
  """Returns the right side of a text's last equation; of x = 3, y = 5 there is none."""
  assigned = [quantity(match[1].strip(" .")) for match in _ASSIGNED.finditer(text)]
  if len(assigned) > 1 and _same(assigned) is None:
    return HEDGE
  *_, sign = _RELATION.finditer(text)
  left, right = text[:sign.start()], text[sign.end():]
  if unsolved(re.split(r"[,;:=]|\s(?:so|and|or|is)\s", left)[-1]):
    return HEDGE
  before = quantity(_FILLER.sub("", left.strip(), count=1))
  found = _direct(right)
  if found is None:
    found = _chosen(numbers(right), right)
  if found is None or (before is not None and isinstance(found, str)):
    return before if before is not None else found
  if before is None or isinstance(found, str) or equal(before, found):
    return found
  return before if "=" not in sign[0] else HEDGE


def _chosen(found: list[Number], text: str) -> Quantity | str | None:
  """Returns the number of a clause that counts: the free one, or of several the last."""
  found = [one for one in found if not one.ordinal]
  if not found:
    return None
  usable = [one for one in found if one.is_free] or [
      one for one in found if one.stands_alone and not one.bounded]
  if not usable:
    return HEDGE
  if alternatives(found, text):
    return HEDGE
  values = [one.value for one in usable]
  if _same(list(values)) is not None:
    return values[-1]
  last, before = usable[-1], usable[-2]
  between = text[before.end:last.start]
  if (joined(between) or not between.strip()) and not _CUE.search(text[before.end:]):
    return HEDGE
  clauses = _JOINT.split(between)
  if joined(between) and len(clauses) > 1 and _CUE.search(clauses[0]):
    return HEDGE  # 5 left and 6 left
  return values[-1]


_SENTENCE_END = re.compile(r"(?<=[^\s\d][.!?。！])\s+|(?<=\d[.!?。])\s+|。")
_ABBREVIATION = re.compile(r"\b(?:i\.e\.|ie\.|viz\.),?\s")
_ENCLOSED = re.compile(r"[(\[{]([^()\[\]{}]*)[)\]}]\.?")
_BREAKDOWN = re.compile(r"(?<!\d):\s")
_BULLET = re.compile(r"\s{0,8}(?:[-*•]\s+|\(?\d{1,2}[.)]\s+(?=\S))")
_FILLER = re.compile(
    r"(?:(?:is|are|was|be|exactly|approximately|about|around|roughly|only|just|simply|nearly|almost"
    r"|therefore|thus|hence|so|indeed|clearly|probably|likely|possibly|now|then|equal to|equals"
    r"|a total of|the number|the value|it is|it's|that is|there are|we get|we have|[a-zA-Z]\s{0,3}="
    r"(?!.*=)|[=:≈~,]|\\approx)"
    r"[\s,:]{0,4})*", re.IGNORECASE)
_HEAD_END = re.compile(
    r",(?!\d{3}(?!\d))|[;:?。]|(?<=[^\d\s])!|\.(?=\s|$)|\s?\(|\s[-–—]+\s|[–—]|(?<=\d)-(?=\d)|\s?[|&≈]\s?|\s?/(?=\s?\d+\s?/)|/(?!\s?\d)|(?<!\d)/"
    r"|\s(?:because|since|as|which|where|when|who|that|so|thus|therefore|not|rather|instead|after|from|or"
    r"|and|but|for|to|in|at|by|on|per|of|out|with|until|before|if|while|is|are|was|were|has|have"
    r"|isn['’]t|aren['’]t|cannot|can['’]t"
    r"|more|less|fewer|greater|i\.e|every|each|plus|minimum|maximum)\b|\s?→")
_REASON = re.compile(r"[\s,;]+(?:because|since|as(?=\s+(?:\d|there|it|we|he|she|the|they))|where|when"
                     r"|rather than|instead of|compared|not counting|unlike|although|even though|if|assuming"
                     r"|which (?:is|are|means) \$?[\d.,/]+\s?(?:%|percent|more|less|fewer|times|of\b)[^,]*"
                     r"|provided|given that)\b")
_CONCLUSION = re.compile(
    r"\b(?:so(?! that)(?! far)(?! on)|thus|therefore|hence|consequently|altogether"
    r"|which (?:is|are|makes|gives|means|leaves|equals|comes to|totals)|that (?:is|makes|gives|leaves)"
    r"|giving|making|leaving|yielding|totall?ing|(?:for|in) a total of|i\.e\."
    r"|to (?:get|give|obtain|yield))\b(?!\s+\$?[\d.,/]+\s?(?:%|percent|more|less|fewer|times|of\b))"
    r"|→|⇒|=>|->|∴|\\(?:to|implies|Rightarrow|rightarrow|therefore)(?![a-zA-Z])", re.IGNORECASE)
_VERB_BEFORE_NUMBER = re.compile(
    r"(?<!\bto )\b(?:(?:is|are|was|were)(?: equal to)?|equals?|costs?|makes?|gives?|totals?|leaves?|weighs?|comes? to"
    r"|adds? up to|amounts? to|takes?|gets?|earns?|pays?|has|have|had|works?|drives?|needs?|becomes?)\b"
    r"(?=\s{1,3}(?:(?:about|only|exactly|now|then|just|her|him|them|me|us|you) )?[$€£]?-?\d)", re.IGNORECASE)
_OPENING_CLAUSE = re.compile(r"\s*(?:[A-Za-z]+ing|[Ss]ince|[Ww]ith|[Aa]fter|[Bb]efore|[Ii]f|[Ww]hen|[Gg]iven|[Aa]s"
                             r"|[Bb]ecause|[Ff]or|[Ii]n|[Aa]t|[Oo]n|[Bb]y|[Oo]f|[Ww]hile)\b[^,]*,(?!\d)\s")
_CUE = re.compile(r"\b(?:so|thus|therefore|hence|total|totals|altogether|in all|overall|together|combined"
                  r"|left|remain|remains|remaining|sum|result|answer|final|finally|makes|equals"
                  r"|becomes|gives|leaves|leaving)\b", re.IGNORECASE)
_VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|flew|left|came|went|gave|ate|bought|sold|lost"
                   r"|got|there|[a-z]{3,}ed)\b")
_AFTERTHOUGHT = re.compile(r"\s*(?:or|maybe|perhaps|possibly|alternatively|otherwise|it (?:could|might)"
                           r"|could|\$?\d[\d.,]*\s*\?)", re.IGNORECASE)
_BOUND_WORDS = re.compile(r"\b(?:minimum|maximum|more|fewer|less|least|most|plus|upward|upwards|above"
                          r"|below)\s*\.?$")
_BOUND_BEHIND = re.compile(
    r"\s*,?\s*(?:(?:or|and)\s+(?:more|less|fewer|greater|higher|lower|above|below|up|over|under|larger"
    r"|smaller|older|younger|later|earlier|beyond|bigger|better|worse)\b|\+|at (?:least|most)\b"
    r"|(?:more|fewer|less) or (?:more|fewer|less)\b)")
_REFUSED = re.compile(r"[^.,;\d]{0,30}?\b(?:(?:is|are|was|were|be|seems|looks) (?:\w+ )?(?:not|wrong|incorrect"
                      r"|false|impossible|too|ruled out|excluded)\b|isn['’]t|aren['’]t|cannot|can['’]t)")
_RANGE_BEHIND = re.compile(
    r"\s*(?:[-–—]|to|through|until|out of|of|→|⇒|->|=>|:(?=\d)|/|\|)\s*(?:about |maybe )?[$€£]?-?\d"
    r"|\s*to the power\b|\s*(?:plus|minus|times)\b.*\d")
_REMAINS = re.compile(r"(?:\band|,)\s+(?:only )?\$?\d[\d.,]*\s+(?:\w+\s+){0,3}?"
                      r"(?:remain|remains|left|remaining|in total|altogether)\b")
_NO_ANSWER = re.compile(r"(?i)\b(?:can(?:not| not|['’]t|'t) (?:be )?determined?|no answer|not enough information"
                        r"|undefined|insufficient)\b")
_BY_CASES = re.compile(r"(?:,|;|\band|\bor|\bbut)\s*(?:it is |is )?\$?-?\d[\d.,]*\s*(?:\w+\s)?"
                       r"(?:if|when|where|otherwise)\b")
_JOIN = re.compile(r"[,;]|\s(?:or|and)\b|[/|&、]|\s(?:oder|und|et|ou|y)\s|或|和")
_JOINT = re.compile(r"\band\b|\bor\b|[,;&|]")
_NEGATION = re.compile(r"\s*(?:not|never|no|nothing)\b")
_NUMERAL = re.compile(r"\s*(?:maybe |perhaps |possibly )?(?:none|zero|one|two|three|four|five|six|seven"
                      r"|eight|nine|ten|eleven|twelve|nothing)\b")
# A bracket behind a word or a number is a remark; behind a sign it belongs to a formula.
_BRACKETS = re.compile(r"(?<=[\w%.,!?$])\s\([^()]{0,300}\)")
_RELATION = re.compile(r"(?<![<>!≤≥≠:])=(?![=>])|≈|\\approx(?![a-zA-Z])")
_ASSIGNED = re.compile(r"(?:^|[\s,;$(])[a-zA-Z](?:_\{?\w\}?)?\s*=\s*([^=,;]+?)(?=[,;=]|\s(?:and|or)\b|$)")
