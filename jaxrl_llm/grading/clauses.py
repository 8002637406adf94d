"""The clause of a sentence that concludes: "there were 9, so 18 in total" ends in "18 in total".

Rules: own derivation; known cases are in tests/grading/answer_forms.jsonl.
"""

import re

from jaxrl_llm.grading.numerals import joined, numbers
from jaxrl_llm.grading.quantities import equal, quantity


def sentences(line: str) -> list[str]:
  """Returns the sentences of a line that are not empty, at least one."""
  line = _ABBREVIATION.sub(" that is ", line)
  return [part for part in _SENTENCE_END.split(line) if part.strip()] or [line]


def holds_number(text: str) -> bool:
  """Returns whether a clause has a number that it may be about."""
  return any(number.is_free for number in numbers(text))


def before_reason(text: str) -> str:
  """Returns the text before "because", "since", "if", "rather than"."""
  reason = _REASON.search(text)
  return text[:reason.start()] if reason else text


def without_remarks(sentence: str) -> str:
  """Returns a sentence without remarks in brackets, reasons, and the breakdown of a sum."""
  text = without_brackets(sentence)
  if not re.search(r"\d", text):
    text = re.sub(r"\((\$?-?\d[\d,.]*)\)", r"\1", sentence)  # twelve (12) apples
  head, *breakdown = _BREAKDOWN.split(text, maxsplit=1)
  if (breakdown and len(numbers(breakdown[0])) > 1 and holds_number(head)
      and _is_summed(head, breakdown[0])):
    text = head
  head = before_reason(text)
  return head if holds_number(head) else text


def _is_summed(head: str, breakdown: str) -> bool:
  """Returns whether the result after a colon is the number before it; "Add 5: 9 + 5 = 14" is new.
  """
  results = numbers(breakdown.rpartition("=")[2]) if "=" in breakdown else []
  return not results or any(equal(results[0].value, number.value) for number in numbers(head))


def without_brackets(text: str) -> str:
  """Returns a text without the brackets that hold remarks; brackets of formulas stay."""
  return _BRACKETS.sub("", text)


def last_clause(text: str) -> str:
  """Returns the clause after the last word that concludes, and after an opening clause."""
  for cue in reversed([*_CONCLUSION.finditer(text)]):
    if re.search(r"\d", text[cue.end():]) and not _is_arrow(text, cue):
      text = text[cue.end():]
      break
  opening = _OPENING_CLAUSE.match(text)
  return text[opening.end():] if opening and holds_number(text[opening.end():]) else text


def verb_with_number(text: str) -> re.Match | None:
  """Returns the last verb with a number after it: "is 5", "costs her $5"."""
  verbs = [verb for verb in VERB.finditer(text) if holds_number(text[verb.end():])]
  return verbs[-1] if verbs else None


def lists_clauses(text: str, verb: re.Match) -> bool:
  """Returns whether a verb's clause is joined to one with a number: "Tom is 5 and Ann is 6".

  A clause that computes its number concludes: "Tom is 5, Ann is 2 * 3 = 6".
  """
  if _COMPUTED.match(text, verb.end()):
    return False
  before = numbers(text[:verb.start()])
  return bool(before) and before[-1].is_free and joined(text[before[-1].end:verb.start()])


def concludes_later(rest: str) -> bool:
  """Returns whether the words after a number lead to a conclusion with another one."""
  head = before_reason(rest)
  remains = _REMAINS.search(rest)
  if remains and not CUE.search(rest[:remains.start()]):
    return True
  cues = [cue for cue in _CONCLUSION.finditer(head)
          if cue[0] not in ("that is", "i.e.")]  # these say the same again
  cues += [verb for verb in VERB.finditer(head) if not joined(head[:verb.start()])]
  return any(holds_number(rest[cue.end():]) for cue in cues[-2:])


def _is_arrow(text: str, cue: re.Match) -> bool:
  """Returns whether a sign is a map from one number to another, 4 -> 5, and no conclusion."""
  return not cue[0].strip()[:1].isalpha() and quantity(text[:cue.start()]) is not None


_SENTENCE_END = re.compile(r"(?<=[^\s\d][.!?。！])\s+|(?<=\d[.!?。])\s+|。")
_ABBREVIATION = re.compile(r"\b(?:i\.e\.|ie\.|viz\.),?\s")
_BREAKDOWN = re.compile(r"(?<!\d):\s")
_REASON = re.compile(r"[\s,;]+(?:because|since|as(?=\s+(?:\d|there|it|we|he|she|the|they))|where"
                     r"|when"
                     r"|rather than|instead of|compared|not counting|unlike|although|even though"
                     r"|if|assuming"
                     r"|which (?:is|are|means) \$?[\d.,/]+\s?(?:%|percent|more|less|fewer|times"
                     r"|of\b)[^,]*"
                     r"|provided|given that)\b")
_CONCLUSION = re.compile(
    r"(?<!after )(?<!before )(?<!by )\b(?:so(?! that\b(?!['’]))(?! (?:far|on)\b)|thus|therefore"
    r"|hence|consequently|altogether"
    r"|which (?:is|are|makes|gives|means|leaves|equals|comes to|totals)"
    r"|that (?:is|makes|gives"
    r"|leaves)"
    r"|giving|making|leaving|bringing|yielding|totall?ing|(?:for|in) a (?:grand )?total of|i\.e\."
    r"|to (?:get(?! to\b)|give|obtain|yield))\b"
    r"(?!\s+\$?[\d.,/]+\s?(?:%|percent|more|less|fewer|times|of\b))"
    r"|\bwhich rounds (?:up |down )?to\b"
    r"|→|⇒|=>|->|∴|\\(?:to|implies|Rightarrow|rightarrow|therefore)(?![a-zA-Z])", re.IGNORECASE)
_COMPUTED = re.compile(r"\s*[$(]{0,2}\d[\d.,]*\s?(?:[-+*/x×÷–]|\\times|\\div)"
                       r"\s?[$(]{0,2}\d[^=]{0,60}=[^=]*\d")
VERB = re.compile(
    r"(?<!\bto )\b(?:(?:is|are|was|were)(?: equal to)?|equals?|costs?|makes?|gives?|totals?"
    r"|leaves?|weighs?|comes? to"
    r"|adds? up to|amounts? to|takes?|gets?|earns?|pays?|has|have|had|works?|drives?|needs?"
    r"|becomes?)\b"
    r"(?=\s{1,3}(?:(?:about|only|exactly|now|then|just|her|him|them|me|us"
    r"|you) )?[$€£]?-?\d)", re.IGNORECASE)
_OPENING_CLAUSE = re.compile(r"\s*(?:(?:[Aa]nd|[Tt]hen)\s)?(?:[A-Za-z]+ing|[Ss]ince|[Ww]ith"
                             r"|[Aa]fter|[Bb]efore|[Ii]f|[Ww]hen|[Gg]iven|[Aa]s"
                             r"|[Bb]ecause|[Ff]or|[Ii]n|[Aa]t|[Oo]n|[Bb]y|[Oo]f"
                             r"|[Ww]hile)\b[^,]*,(?!\d)\s")
_REMAINS = re.compile(r"(?:\band|,)\s+(?:only )?\$?\d[\d.,]*\s+(?:\w+\s+){0,3}?"
                      r"(?:remain|remains|left|remaining|in total|altogether)\b")
CUE = re.compile(r"\b(?:so|thus|therefore|hence|total|totals|altogether|in all|overall|together"
                  r"|combined"
                  r"|left|remain|remains|remaining|sum|result|answer|final|finally|makes|equals"
                  r"|becomes|gives|leaves|leaving)\b", re.IGNORECASE)
# A bracket after a word or a number is a remark; after a sign it belongs to a formula.
_BRACKETS = re.compile(r"(?<=[\w%.,!?$])\s\([^()]{0,300}\)")
