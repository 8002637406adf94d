r"""Answers that are taken back: "42... wait, it is 44", and \boxed{12} before "No: it is 13".

Rules: own derivation.
"""

import re
from collections import deque

from jaxrl_llm.grading.clauses import sentences
from jaxrl_llm.grading.conclusions import concluded
from jaxrl_llm.grading.extraction import answer_text, before_boxes, behind_boxes
from jaxrl_llm.grading.marks import unmarked
from jaxrl_llm.grading.numerals import readable
from jaxrl_llm.grading.quantities import Quantity, equal

LONGEST = 2000  # characters after a box that are read
MOST = 5  # corrections, the last ones, are looked at


def corrected(text: str) -> Quantity | None:
  """Returns the number of the last correction in a text; None without one.

  The sentence of a correction begins with "wait", "actually", "no", and states a number; one that
  begins with "let me check" states none yet.

  Args:
    text: `readable` and `unmarked`.
  """
  for cue in reversed(deque(_CUE.finditer(text), maxlen=MOST)):
    statement = answer_text(text[cue.end():])
    sentence = sentences(text[cue.end():].split("\n", 1)[0])[0]
    if statement or (sentence.strip() and not _CHECK.match(sentence)):
      number = concluded(statement or sentence)
      if number is not None:
        return number
  return None


def is_withdrawn(text: str, boxed: Quantity | None) -> bool:
  """Returns whether the text around the last box denies it, or corrects it to another number.

  Args:
    boxed: the number in the box, or None if it is no number.
  """
  behind = behind_boxes(text)[:LONGEST]
  if _REFUSED.match(behind) or _ALTERNATIVE.match(behind) or _DENIED.search(before_boxes(text)):
    return True
  if not _CUE.search(text, max(0, text.rfind("boxed"))):
    return False
  number = corrected(readable(unmarked(behind)))
  return number is not None and (boxed is None or not equal(boxed, number))


_CUE = re.compile(
    r"(?:[.!?…,;:}$—–-]|\n)[ \t)]{0,3}(?:(?:oh|hmm|but|no|sorry),?[ \t])?"
    r"(?:wait|actually|correction|oops|sorry|hold on|scratch that|no(?!\s))"
    r"(?=[\s,.:;!—–-])[ \t,.:;!—–-]*"
    r"(?:(?:no|not quite|actually|wait|sorry|i mean|i meant|make that|(?:that|this|it)(?: is|['’]s)"
    r"(?: wrong| incorrect| not right| a mistake)|i made (?:a|an) (?:mistake|error))"
    r"(?=[\s,.:;!—–-])[ \t,.:;!—–-]*){0,3}"
    r"(?:(?:so )?(?:(?:the )?(?:correct |right |final |actual )?answer (?:is|should be)|(?:it|that"
    r"|this) should be)\b:?)?", re.IGNORECASE)
_REFUSED = re.compile(r"(?i)[\s$\\)\]*?.]{0,9}(?:(?:this|that|it) )?(?:is|was|must be)"
                      r" (?:clearly |also )?(?:wrong|incorrect|false|not (?:right|correct"
                      r"|the (?:correct |right |final )?answer))\b")
_ALTERNATIVE = re.compile(
    r"[\s$\\)\],]{0,9}or (?:maybe|perhaps|possibly|even)\b[\s$\\(\[]{0,5}-?\d")
_DENIED = re.compile(r"\b(?:is not|isn['’]t|cannot be|can['’]t be|not equal to)[\s$\\(\[*]{0,6}$")
_CHECK = re.compile(r"\s*(?:let|we|I|if|since|because|when|for)\b")
