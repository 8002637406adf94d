r"""The number that a statement concludes: "48 in April and 24 in May, so 72 in total" is 72.

A statement is the text after the mark of an answer, or the last sentence of a text without one. The
last number counts of what follows "=", "so" or another conclusion. A bound, a denial and several
numbers that are joined are a hedge, and a part of a formula is no number.
"""

import re
from typing import NamedTuple

from jaxrl_llm.grading.quantities import Quantity, equal, quantity

HEDGE = "several"  # in the place of a number: there is none, and nothing before counts instead
LONGEST = 1000  # characters of a line that are read


class Number(NamedTuple):
  """A number of a sentence, and its ends there."""

  value: Quantity
  start: int
  end: int


def concluded(statement: str) -> Quantity | None:
  """Returns the number of a statement, or None for a hedge, a bound, a formula, or no number.

  Args:
    statement: `normalise.unmarked`, perhaps with the lines below it.
  """
  for cue in reversed([*CORRECTION.finditer(statement)][-5:]):
    rest = sentences(statement[cue.end():].split("\n", 1)[0])[0]
    if not _CHECK.match(rest) and (number := concluded(rest)):
      return number
  lines = [line[-LONGEST:] for line in statement.splitlines() if re.search(r"\d", line)]
  if not lines or (len(lines) > 1 and (
      _DOUBT.match(lines[1]) or quantity(_BULLET.sub("", lines[1]).strip(" .")) is not None)):
    return None  # a list, or another number in doubt
  first, *later = [part for part in sentences(lines[0]) if re.search(r"\d", part)]
  if later and _DOUBT.match(later[0]):
    return None
  number = _sentence(re.sub(r"^\s{0,8}[-*•]\s", "", first))
  return None if isinstance(number, str) else number


def sentences(line: str) -> list[str]:
  """Returns the sentences of a line that are not empty, at least one."""
  return [part for part in re.split(r"(?<=[^\s\d][.!?])\s+|(?<=\d[.!?])\s+", line)
          if part.strip()] or [line]


def _sentence(sentence: str) -> Quantity | str | None:
  """Returns the number that a sentence concludes, `HEDGE`, or None if it has no number."""
  text = _BRACKETS.sub("", re.sub(r"\(\s*(?=(?:or|maybe)\b)", "", sentence))
  reason = _REASON.search(text)
  text = text[:reason.start()] if reason and re.search(r"\d", text[:reason.start()]) else text
  cues = [cue.end() for cue in _CONCLUSION.finditer(text) if numbers(text[cue.end():]) and not (
      cue["verb"] and numbers(text[:cue.start()]))]
  text = text[cues[-1]:] if cues else text
  if _RELATION.search(text):
    return _equation(text)
  if _HEDGED.search(text):
    return HEDGE
  if enclosed := re.fullmatch(r"\s*[(\[{|]([^()\[\]{}|]*)[)\]}|]\.?", text):
    text = enclosed[1]
  number = quantity(text)
  return _chosen(text) if number is None else number


def _equation(text: str) -> Quantity | str | None:
  """Returns the right side of a text's last equation; of x = 3, y = 5 there is none."""
  assigned = {match[1].strip(" .") for match in _ASSIGNED.finditer(text)}
  *_, sign = _RELATION.finditer(text)
  left, right = text[:sign.start()], text[sign.end():]
  stated = numbers(right)
  beside = left[-25:] + " = " + right[:stated[0].end + 12 if stated else None]
  if len(assigned) > 1 or _UNSOLVED.search(left) or _HEDGED.search(beside):
    return HEDGE
  before, after = quantity(_FILLER.sub("", left.strip(), count=1)), quantity(right)
  if after is None:
    starts = stated and stated[0].start < 4
    after = _single(right, stated[:2]) if starts else _chosen(right)
  if before is None:
    return after
  if after is None or isinstance(after, str):
    return before
  return after if before.value == after.value else HEDGE


def _chosen(text: str) -> Quantity | str | None:
  """Returns the last number of a clause that no preposition makes a side matter."""
  stated = [number for number in numbers(text) if not _CIRCUMSTANCE.search(
      text[max(0, number.start - 60):number.start])]
  if not stated:
    return HEDGE if re.search(r"\d", text) else None
  if re.match(r"\s+\d", text[stated[-1].end:]):
    return HEDGE
  return _single(text, stated[-2:], last=True)


def _single(text: str, pair: list[Number], *, last: bool = False) -> Quantity | str:
  """Returns the first or last of one or two numbers, `HEDGE` if they differ and are joined."""
  between = text[pair[0].end:pair[-1].start]
  if not equal(pair[0].value, pair[-1].value) and (
      not between.strip() or re.search(r"\band\b|\bor\b|[,;&|/]", between)):
    return HEDGE
  return pair[-1 if last else 0].value


def numbers(text: str) -> list[Number]:
  """Returns the numbers of a text that are no part of a formula, in order, at most the last 50."""
  out = []
  for match in [*_NUMBER.finditer(text)][-50:]:
    before = text[max(0, match.start() - 60):match.start()]
    after = text[match.end():match.end() + 40]
    if not (_FORMULA_BEFORE.search(before) or _FORMULA_AFTER.match(after)):
      money = re.search(r"-?[$€£¥]-?$", before[-3:])
      value = quantity((money[0] if money else "") + match[0] + _SUFFIX.match(after)[0])
      out += [Number(value, match.start(), match.end())] if value else []
  return out


_DIGITS = r"(?:\d{1,3}(?:,\d{3}(?!\d))*(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(r"(?:(?<![\w).\]}])[-+])?(?:(?<![\w.,/^])\d{1,3}\s\d{1,3}/\d{1,3}(?![\d/])"
                     rf"|(?:{_DIGITS})(?:\s{{0,3}}/\s{{0,3}}\d+(?![.,]?\d))?)")
_SUFFIX = re.compile(r"\s?(?:%|percent\b|(?:hundred|thousand|million|billion)\b)?")
_BULLET = re.compile(r"^\s{0,8}(?:[-*•]\s+|\(?\d{1,2}[.)]\s+(?=\S))?")
CORRECTION = re.compile(
    r"(?:[.!?,;:}$-]|\n)[ \t)]{0,3}(?:(?:oh|hmm|but|no|sorry),?[ \t])?"
    r"(?:wait|actually|correction|oops|sorry|hold on|scratch that|no(?!\s))(?=[\s,.:;!-])"
    r"(?:[ \t,.:;!-]|\b(?:no|not quite|actually|wait|sorry|i mean|i meant|make that"
    r"|(?:that|this|it)(?: is|'s) (?:wrong|incorrect|not right|a mistake)"
    r"|i made (?:a|an) (?:mistake|error)|so"
    r"|(?:the )?(?:correct |right |final )?answer (?:is|should be)|(?:it|that|this) should be)"
    r"\b){0,20}", re.IGNORECASE)
_CHECK = re.compile(r"\s*(?:let|we|I|if|since|because|when|for)\b")
_DOUBT = re.compile(r"\s*(?:or|maybe|perhaps|possibly|alternatively|otherwise|it (?:could|might)"
                    r"|could|\$?\d[\d.,]*\s*\?)", re.IGNORECASE)
# Bounds, denials and doubts: whatever the sentence states, it does not state one number.
_HEDGED = re.compile(
    r"(?i)\b(?:can(?:not|'t)|can not|isn't|aren't|wasn't|not|nor|neither|never|undefined|wrong"
    r"|incorrect|false|impossible|no answer|insufficient|at (?:least|most)|up to|between|either"
    r"|maybe|perhaps|possibly|(?:could|might|may)(?: also)? be|(?:less|fewer|greater|larger|higher"
    r"|smaller|lower|more) than|(?:or|and) (?:more|less|fewer|greater|higher|lower|above"
    r"|below|up|over|under|larger|smaller|older|younger|later|beyond)|exceeds?|minimum|maximum"
    r"|multiples? of|divisible by|divides|otherwise|squared|cubed|factorial|twice|half of|double"
    r"|(?:root|square|cube|power|multiple) of|to the power|log|(?:and|or) an? (?:half|third"
    r"|quarter)|\d remainder|\d[\d.,]* (?:if|when))\b"
    r"|\\(?:pm|leq?|geq?|neq?|lt|gt|n?mid|not)(?![a-z])|(?<![-=])[<>]|!=|\d\s?\+(?!\s*[$\d(])|\d!|√")
_FILLER = re.compile(
    r"(?:(?:is|are|was|be|exactly|approximately|about|around|roughly|only|just|nearly|almost"
    r"|therefore|thus|hence|so|now|then|equal to|equals|a total of|the number|the value|it is|it's"
    r"|that is|there are|we get|we have|[a-zA-Z]\s{0,3}=(?!.*=)|[=:~,#]|\\approx)[\s,:]{0,4})*",
    re.IGNORECASE)
_REASON = re.compile(r"(?<!\bso)[\s,;]+(?:because|since|as(?=\s+(?:\d|there|it|we|he|she))"
                     r"|where|when(?! [a-z] =)|rather than|instead of|although|even though"
                     r"|if(?! [a-z] =)|assuming|given that|i\.e\.?|not (?=\d)"
                     r"|which (?:is|are|means) (?:more|less|\$?[\d.,/]+\s?(?:%|percent|more|less"
                     r"|fewer|times|of\b))[^,]*)(?:\b|\s)")
_CONCLUSION = re.compile(
    r"(?<!after )(?<!before )(?<!by )\b(?:so(?! that\b(?!'))(?! (?:far|on)\b)|thus|therefore|hence"
    r"|altogether|which (?:is|are|makes|gives|means|leaves|equals)(?= (?:\w+ )?[$€£]?-?\d)"
    r"|that (?:makes|gives|leaves)|giving|making|leaving|totall?ing"
    r"|(?:for|in) a (?:grand )?total of|to (?:get(?! to\b)|give)"
    r"|(?<!to )(?P<verb>is|are|was|were|equals|costs?)(?= (?:\w+ )?[$€£]?-?\d))\b"
    r"(?!\s+\$?[\d.,/]+\s?(?:%|percent|more|less|fewer|times|of\b))"
    r"|\\(?:to|implies|Rightarrow|therefore)(?![a-zA-Z])|[-=]>", re.IGNORECASE)
# A bracket after a word or a number is a remark; after a sign it belongs to a formula.
_BRACKETS = re.compile(r"(?<=[\w%.,!?$])\s\([^()]{0,300}\)")
_RELATION = re.compile(r"(?<![<>!:])=(?![=>])|\\approx(?![a-zA-Z])")
_ASSIGNED = re.compile(r"(?:^|[\s,;$(])[a-zA-Z](?:_\{?\w\}?)?\s*=\s*([^=,;]+?)(?=[,;=]|\s(?:and"
                       r"|or)\b|$)")
_UNSOLVED = re.compile(r"(?:^|[,;:=\s])\$?(?:\d+\s?[a-z]|[a-z]\s?(?:\^\s?\{?\d\}?|[-+*/]\s?\d+)"
                       r"|\|[a-z]\|)\s*$")
_FORMULA_BEFORE = re.compile(
    r"[a-zA-Z_]\(?$|\d\s*%?\s*(?:-|\bto\b|\bthrough\b|\bout of\b|:|/)\s*\$?$"
    r"|[\w)}]\s*[-+*/^]{1,2}\s*$|[\w)}]\s(?:x|times)\s$|[\^_({]\s*\{?\s*$|\\[a-zA-Z]+\s*[\[{(]?\s*$"
    r"|\b(?:minus|negative|plus|step|question|part|case|problem|equation|third of|quarter of)\s$",
    re.IGNORECASE)
_FORMULA_AFTER = re.compile(
    r"\s*(?:[\^!_*+]|\\(?!\)|\]|%|\$|,|;| |approx|Rightarrow|to|circ)|[<>]|->|=>|!="
    r"|(?:to|through|until|out of|minus|plus|times)\b\s*\$?\d|[-:/]\s*\$?\d|/\s*[a-zA-Z\\(]"
    r"|x\s*\d|-\s*\()|[a-zA-Z](?![a-zA-Z])|\s[a-z](?=\s*(?:[=+*^.]|$))|_|(?:st|nd|rd|th)\b")
_CIRCUMSTANCE = re.compile(
    r"(?:\b(?:for|at|of) (?:the|his|her|their|its|all|each|every|these|those|both) (?:\w+ )?"
    r"|\b(?:for|at)\s(?![$€£])|\b(?:from|with|after|before|in|per|every|each|within|during|among"
    r"|adding|subtracting|dividing|multiplying|by|times|into|given|using|if|when|while|than|against"
    r"|other|since|because|out of)\s|\b(?:on|the|all|these|those|his|her|their|its|both)\s(?![$€£])"
    r"|(?<!needs )(?<!need )(?<!has )(?<!have )(?<!had )(?<!able )"
    r"\bto (?!be\b|get\b|give\b|obtain\b|about\b)[a-z]{2,12}\s"
    r"|\b(?:sum|product|difference|average|ratio|percent|[%])\sof\s(?:the )?)"
    r"(?:(?:a|an|the|his|her|their|all|each|these|first|last|next|other|only|original)\s){0,3}"
    r"[$€£]?$", re.IGNORECASE)
