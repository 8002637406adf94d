r"""Where an answer stands: in boxes, after the last mark ("####", "answer is"), in the last line.

Every pattern takes linear time even on a hostile text: repeats are bounded, or what follows them
cannot match inside of them. Rules here and in the files beside are an own derivation.
"""

import bisect
import functools
import re
from collections import deque
from typing import NamedTuple

LONGEST = 2000  # characters that are read after a mark or a box, and at the end of a text
MOST_MARKS = 20  # the last ones are looked at


class Span(NamedTuple):
  """A box or a formula between dollars in a text; the content is None if it never closes."""

  start: int
  end: int
  content: str | None


def last_boxed(text: str) -> str | None:
  """Returns the content of the last box, see `answer_boxes`; None without a box."""
  contents = answer_boxes(text)
  return contents[-1] if contents else None


def answer_boxes(text: str) -> list[str]:
  r"""Returns the boxes that make up the last answer; more than one in "\boxed{5} or \boxed{6}".

  A last box that never closes is empty. An empty \boxed{} only names the command, unless there is
  no other box.
  """
  spans = box_spans(text)
  if not spans or spans[-1].content is None:
    return [""] if spans else []
  spans = [span for span in spans if not _PLACEHOLDER.fullmatch(span.content)] or spans[-1:]
  return [span.content for span in joined(text, spans)]


def joined(text: str, spans: list[Span]) -> list[Span]:
  """Returns the last span, and those before it with only a joining word or sign between them."""
  first = len(spans) - 1
  while first > 0 and _BETWEEN.fullmatch(text[spans[first - 1].end:spans[first].start]):
    first -= 1
  return spans[max(first, 0):]


def without_boxes(text: str) -> str:
  """Returns the text with every box removed."""
  for span in reversed(box_spans(text)[-20:]):
    text = f"{text[:span.start]} {text[span.end:]}"
  return text


@functools.lru_cache(8)  # a verdict asks several times about its text
def box_spans(text: str) -> list[Span]:
  r"""Returns the boxes, \boxed{...} and \fbox{...}, in order.

  If boxes are nested, the outer one counts, and the inner ones are unwrapped. A box that never
  closes is the last one, since its content is unknown. `\boxed 5`, as MATH has it, ends at the next
  dollar sign, or without one at the next space; in prose, "in \boxed, as you asked", it is none.
  """
  outermost: list[tuple[int, int, int]] = []
  for start, inside, end in groups(text, _BOX):  # an outer group closes after its inner groups
    while outermost and outermost[-1][0] > start:
      outermost.pop()
    outermost.append((start, inside, end))
  spans = [Span(start, end + 1, unwrap(text[inside:end], _BOX).strip())
           for start, inside, end in outermost]
  starts = [start for start, _, _ in outermost]
  for match in _BARE_BOX.finditer(text):
    around = bisect.bisect(starts, match.start()) - 1
    if around < 0 or outermost[around][2] < match.start():
      content = match[1] if match[1] is not None else match[2]
      spans.append(Span(match.start(), match.end(), content.rstrip(".,;").strip()))
  spans.sort(key=lambda span: span.start)
  last = next(iter(deque(_OPENED.finditer(text), maxlen=1)), None)
  if last and all(span.start < last.start() and span.end <= last.start() for span in spans[-1:]):
    spans.append(Span(last.start(), len(text), None))
  return spans


def formulas(text: str) -> list[str]:
  r"""Returns the last formula between dollars or \( and \); all of "$5$ or $6$"."""
  spans = [Span(match.start(), match.end(), next(part for part in match.groups() if part))
           for match in _FORMULA.finditer(text)]
  return [span.content or "" for span in joined(text, spans)]


def marked(text: str) -> str | None:
  """Returns what follows the last mark of an answer whose line has a number or formula.

  Marks are `####`, `<answer>`, "answer:", "answer is" and "answer =". If nothing follows on the
  line, the next line that is not empty counts. The lines below it come with it.

  Returns:
    None without a mark. If no mark has a number or formula, what follows the last one.
  """
  ends = deque((match.end() for match in _MARK.finditer(text)), maxlen=MOST_MARKS)
  statements = [text[end:end + LONGEST].lstrip(" \t*_:").lstrip("\n ") for end in reversed(ends)]
  stated = (text for text in statements if re.search(r"[\d$\\=^]", text.split("\n", 1)[0]))
  return next(stated, statements[0] if statements else None)


def last_line(text: str) -> str:
  """Returns the last line with a number or formula, or else the only line."""
  lines = [line for line in text.splitlines() if line.strip()]
  candidates = [line for line in lines if re.search(r"[\d$\\=]", line)]
  return (candidates or (lines if len(lines) == 1 else [""]))[-1][-LONGEST:]


def groups(text: str, opener: re.Pattern | None) -> list[tuple[int, int, int]]:
  """Returns (start, begin of the content, end of the content) of balanced groups, as they close.

  Args:
    opener: matches the beginning of a wanted group, with its brace. None: every brace begins one.
  """
  openings = {match.end() - 1: match.start() for match in opener.finditer(text)} if opener else {}
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
  cuts = sorted(cut for start, content, end in groups(text, opener)
                for cut in ((start, content), (end, end + 1)))
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
    r"\\boxed(?:\s(?!\s{0,3}[,.;:!?)])"
    r"((?:(?!\\boxed)\\[a-zA-Z]+(?![a-zA-Z])|(?![a-zA-Z]{2})[^{}$\n\\]|\\.){1,200})(?=\$)"
    r"|\s{0,3}(?!\\[)\]])((?:[-+.]?\d|\\[a-zA-Z]|\([^\s()]+\))[^\s{}$]{0,100}))")
_PLACEHOLDER = re.compile(r"\s*|\.{3}|…|\\[lcd]?dots")
_BETWEEN = re.compile(
    r"(?:[\s$,;/&|*]|\\[()\[\]]|\\(?:quad|text)|[{}]|\n[-*•]|\n\d\.|\b(?:and|et|und|y|or|oder|ou)\b"
    r"|和|或|、){0,40}|[\s$,;.()\\\]]{0,20}(?:\bor\b|\boder\b|\bou\b|或者?)(?! rather)"
    r"(?:[ ,]{1,3}[A-Za-z']{1,12}){0,4}[\s$,:()\\\[]{0,20}")
_FORMULA = re.compile(r"\$\$([^$]{1,400})\$\$|(?<![\\\w$])\$([^$\n]{1,400}?)(?<!\\)\$(?!\d)"
                      r"|\\\(((?:(?!\\\)).){1,400})\\\)|\\\[((?:(?!\\\]).){1,400})\\\]", re.DOTALL)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is skipped as one
_MARK = re.compile(r"####|<answer>|(?i:\bans(?:wer)?\b)\*{0,2}(?:\s{0,3}[:：=]|\s{1,3}is\b:?)"
                   r"|答案\s{0,3}[:：是为]")
