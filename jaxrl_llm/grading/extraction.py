r"""Extraction of the answer from a completion: thinking blocks, boxes, answer lines.

Every pattern takes linear time even on a hostile text: repeats are bounded, or what follows them
cannot match inside of them. (Possessive repeats before a lookahead are wrong in Python 3.11.2.)
The rules are an own derivation; tests/tasks/test_extraction.py has the known cases.
"""

import bisect
import functools
import operator
import re
from collections import deque

LONGEST_LINE = 2000  # characters that are read after an answer's mark
MOST_MARKS = 20  # the last ones are looked at


def after_thinking(text: str) -> str:
  """Returns the text after the last `</think>`, or the full text if it has no thinking block.

  A thinking block that is never closed leaves nothing.
  """
  if "</think>" in text:
    return text.rsplit("</think>", 1)[1]
  return "" if "<think>" in text else text


def boxes(text: str) -> list[str]:
  r"""Returns the contents of all boxes, \boxed{...} and \fbox{...}, in order.

  Braces must balance; escaped ones do not count. If boxes are nested, the outer one counts, and the
  inner ones are unwrapped. A box that never closes is the last one and empty, since its content is
  unknown. `\boxed 5` ends at the next dollar sign, or without one at the next space; in prose, "in
  \boxed, as you asked", the command is no box.
  """
  return [content or "" for _, _, content in _spans(text)]


def last_boxed(text: str) -> str | None:
  r"""Returns the content of the last box that has one, see `boxes`; None without a box.

  It is empty if a last box never closes. An empty \boxed{} only names the command, unless there is
  no other box.
  """
  contents = answer_boxes(text)
  return contents[-1] if contents else None


def answer_boxes(text: str) -> list[str]:
  r"""Returns the boxes that make up the last answer; more than one in "\boxed{5} or \boxed{6}".

  Boxes belong together if nothing but a joining word or sign is between them.
  """
  spans = _spans(text)
  if spans and spans[-1][2] is None:
    return [""]
  spans = [span for span in spans if not _PLACEHOLDER.fullmatch(span[2] or "")]
  first = len(spans) - 1
  while first > 0 and _BETWEEN_BOXES.fullmatch(text[spans[first - 1][1]:spans[first][0]]):
    first -= 1
  return [content or "" for _, _, content in spans[max(first, 0):]] or boxes(text)[-1:]


def without_boxes(text: str) -> str:
  """Returns the text with every box removed."""
  segments, position = [], 0
  for start, end, _ in _spans(text):
    segments.append(text[position:start])
    position = end
  return " ".join([*segments, text[position:]])


def before_boxes(text: str) -> str:
  """Returns the text before the last box, empty without a box."""
  spans = _spans(text)
  return text[:spans[-1][0]] if spans else ""


def behind_boxes(text: str) -> str:
  """Returns the text after the last box, empty without a box."""
  spans = _spans(text)
  return text[spans[-1][1]:] if spans else ""


@functools.lru_cache(8)  # a verdict asks several times about its text
def _spans(text: str) -> list[tuple[int, int, str | None]]:
  """Returns (start, end, content) of each outermost box, in order; None for one that never closes.
  """
  outermost: list[tuple[int, int, int]] = []
  for start, inside, end in groups(text, _BOX):  # an outer group closes after its inner groups
    while outermost and outermost[-1][0] > start:
      outermost.pop()
    outermost.append((start, inside, end))
  spans: list[tuple[int, int, str | None]] = [
      (start, end + 1, unwrap(text[inside:end], _BOX).strip())
      for start, inside, end in outermost]
  starts = [start for start, _, _ in outermost]
  for match in _BARE_BOX.finditer(text):
    around = bisect.bisect(starts, match.start()) - 1
    if around < 0 or outermost[around][2] < match.start():
      content = match[1] if match[1] is not None else match[2]
      spans.append((match.start(), match.end(), content.rstrip(".,;").strip()))
  spans.sort(key=operator.itemgetter(0))
  last = next(iter(deque(_OPENED.finditer(text), maxlen=1)), None)
  if last and all(start < last.start() and end <= last.start() for start, end, _ in spans[-1:]):
    spans.append((last.start(), len(text), None))
  return spans


def answer_text(text: str) -> str | None:
  """Returns what follows the last mark of an answer with a digit on the line after it.

  Marks are `####`, "answer:", "answer is" and "answer =". If nothing follows on the line, the next
  line that is not empty counts.

  Returns:
    None without a mark; empty if no mark has a digit after it. The lines below it come with it, up
    to 2,000 characters.
  """
  ends = deque((match.end() for match in _MARK.finditer(text)), maxlen=MOST_MARKS)
  if not ends:
    return None
  for end in reversed(ends):
    remainder = text[end:end + LONGEST_LINE].lstrip(" \t*_:").lstrip("\n ")
    if re.search(r"\d", remainder.split("\n", 1)[0]):
      return remainder
  return ""


def answer_words(text: str) -> str:
  """Returns what follows the last mark of an answer, up to the end of its sentence or line."""
  ends = [match.end() for match in _MARK.finditer(text)]
  rest = text[ends[-1]:ends[-1] + LONGEST_LINE].lstrip(" \t*_:\n") if ends else ""
  return re.split(r"[.,;!(\n]", rest, maxsplit=1)[0].strip(" *_")


def groups(text: str, opener: re.Pattern | None) -> list[tuple[int, int, int]]:
  """Returns (start, begin of the content, end of the content) of each balanced group.

  Groups are in the order in which they close. The text is read once.

  Args:
    opener: matches the beginning of a wanted group, with its brace. None: every brace begins one.
  """
  openings = {}
  if opener is not None:
    openings = {match.end() - 1: match.start() for match in opener.finditer(text)}
  stack, out = [], []
  for match in _BRACE.finditer(text):
    if match[0] == "{":
      stack.append(match.start())
    elif match[0] == "}" and stack:
      brace = stack.pop()
      if opener is None or brace in openings:
        out.append((openings.get(brace, brace), brace + 1, match.start()))
  return out


def unwrap(text: str, opener: re.Pattern) -> str:
  """Replaces each group that `opener` begins by its content."""
  cuts = sorted(cut for start, inside, end in groups(text, opener)
                for cut in ((start, inside), (end, end + 1)))
  pieces, position = [], 0
  for start, end in cuts:
    pieces.append(text[position:start])
    position = end
  return "".join(pieces) + text[position:]


_BOX = re.compile(r"\\(?:f?boxed|fbox)\s{0,3}\{")
# A box that is opened, or the incomplete command at the end of a text that was cut off.
_OPENED = re.compile(r"\\(?:f?boxed|fbox)\s{0,3}\{|\\f?bo(?:x(?:e(?:d)?)?)?\s{0,3}\Z")
# TeX would box one token; authors mean all that follows. Words are no content.
_BARE_BOX = re.compile(
    r"\\boxed(?:\s(?!\s{0,3}[,.;:!?)])((?:(?!\\boxed)\\[a-zA-Z]+(?![a-zA-Z])|(?![a-zA-Z]{2})[^{}$\n\\]|\\.){1,200})(?=\$)"
    r"|\s{0,3}(?!\\[)\]])((?:[-+.]?\d|\\[a-zA-Z]|\([^\s()]+\))[^\s{}$]{0,100}))")
_PLACEHOLDER = re.compile(r"\s*|\.{3}|…|\\[lcd]?dots")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;/&|*]|\\[()\[\]]|\\(?:quad|text)|[{}]|\n[-*•]|\n\d\.|\b(?:and|et|und|y|or|oder|ou)\b"
    r"|和|或|、){0,40}"
    r"|[\s$,;.()\\\]]{0,20}(?:\bor\b|\boder\b|\bou\b|或者?)(?! rather)(?:[ ,]{1,3}[A-Za-z']{1,12})"
    r"{0,4}[\s$,:()\\\[]{0,20}")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is skipped as one
_MARK = re.compile(r"####|(?i:\bans(?:wer)?\b)\*{0,2}(?:\s{0,3}[:：=]|\s{1,3}is\b:?)"
                   r"|答案\s{0,3}[:：是为]")
