r"""Where the answer stands in a completion: thinking blocks, boxes, answer lines, options.

Every pattern takes linear time even on a hostile text: repeats are bounded, or what follows them
cannot match inside of them. (Possessive repeats before a lookahead are wrong in Python 3.11.2.)
The rules are an own derivation; tests/tasks/test_extraction.py has the known cases.
"""

import bisect
import re
from collections import deque

LONGEST_LINE = 2000  # characters that are read after an answer's mark
MOST_MARKS = 20  # the last ones are looked at


def after_thinking(text: str) -> str:
  """Returns the text after the last `</think>`, or the whole text if it has no thinking block.

  A thinking block that is never closed leaves nothing.
  """
  if "</think>" in text:
    return text.rsplit("</think>", 1)[1]
  return "" if "<think>" in text else text


def boxes(text: str) -> list[str]:
  r"""Returns the contents of all boxes, \boxed{...} and \fbox{...}, in order.

  Braces must balance; escaped ones do not count. Of nested boxes the outer one counts, and the
  inner ones are unwrapped. `\boxed 5` ends at the next dollar sign, or without one at the next
  space.
  """
  outermost: list[tuple[int, int, int]] = []
  for start, inside, end in groups(text, _BOX):  # an outer group closes after its inner groups
    while outermost and outermost[-1][0] > start:
      outermost.pop()
    outermost.append((start, inside, end))
  found = [(start, unwrap(text[inside:end], _BOX)) for start, inside, end in outermost]
  starts = [start for start, _, _ in outermost]
  for match in _BARE_BOX.finditer(text):
    around = bisect.bisect(starts, match.start()) - 1
    if around < 0 or outermost[around][2] < match.start():
      said = match[1] if match[1] is not None else match[2]
      found.append((match.start(), said.rstrip(".,;")))
  return [content.strip() for _, content in sorted(found)]


def last_boxed(text: str) -> str | None:
  """Returns the content of the last box, see `boxes`; None without a box."""
  found = boxes(text)
  return found[-1] if found else None


def answer_line(text: str) -> str | None:
  """Returns what follows the last mark of an answer with a digit behind it, up to the line's end.

  Marks are `####`, "answer:", "answer is" and "answer =". If nothing follows on the line, the next
  line that is not empty counts.

  Returns:
    None without a mark; empty if no mark has a digit behind it.
  """
  ends = deque((match.end() for match in _MARK.finditer(text)), maxlen=MOST_MARKS)
  if not ends:
    return None
  for end in reversed(ends):
    rest = text[end:end + LONGEST_LINE].lstrip(" \t*:").lstrip("\n* ")
    line = rest.split("\n", 1)[0].strip()
    if re.search(r"\d", line):
      return line
  return ""


def letter(text: str) -> str | None:
  """Returns the option that a completion names, A to J, or None.

  The first of these that occurs counts, and of several the last one: the box; "answer is B",
  "ANSWER: c", "option B"; "(B) because"; "(B)" or "**B**" that is not ruled out ("not (A)", "(A) is
  wrong"); a line that is only the letter, or begins with "B." or "B)".
  """
  box = last_boxed(text)
  if box is not None:
    plain = _OPTION_FONT.sub("", box[:100]).replace("$", "").lstrip("{* (")
    match = re.match(r"([A-Ja-j])(?![a-zA-Z])", plain)
    return match[1].upper() if match else None
  for pattern in _LETTERS:
    if found := [next(filter(None, match.groups())) for match in pattern.finditer(text)]:
      return found[-1].upper()
  return None


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
  kept, position = [], 0
  for start, end in cuts:
    kept.append(text[position:start])
    position = end
  return "".join(kept) + text[position:]


_BOX = re.compile(r"\\(?:f?boxed|fbox)\s{0,3}\{")
# TeX would box one token; authors mean all that follows.
_BARE_BOX = re.compile(r"\\boxed(?:\s([^{}$\n]{1,200})(?=\$)|\s{0,3}([^\s{}$a-zA-Z]\S{0,100}))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is skipped whole
_MARK = re.compile(r"####|(?i:\banswer\b)\*{0,2}(?:\s{0,3}[:：=]|\s{1,3}is\b:?)"
                   r"|答案\s{0,3}[:：是为]")
_OPTION_FONT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boldsymbol|textit|mathit)\s{0,3}(?=\{)")
_LETTER = r"([A-HJ](?![a-zA-Z])|I(?![a-zA-Z']| [a-z]))"  # "answer: I think" names no option
_OPENING = r"\s{0,3}[*$\"']{0,3}\s{0,3}[*$\"']{0,3}[(（]?(?:\\(?:text|mathrm|textbf)\{)?[(（]?"
_WORD = (r"(?i:answer|option|choice|choose|select|pick|go with|it|答案|选项|选择|选|respuesta|"
         r"réponse|antwort)\*{0,2}")
_LETTERS = (
    # After a colon a small letter is an option too.
    re.compile(rf"{_WORD}\s{{0,3}}[:：]{_OPENING}(?:{_LETTER}|([a-j])(?=[\s.,;)）*$}}]|$))"
               rf"|{_WORD}(?:\s{{1,3}}is|是|为)?\s{{0,3}}:?{_OPENING}{_LETTER}"),
    re.compile(r"[(（]([A-J])[)）],?\s{1,3}(?:because|since|as)\b"),
    re.compile(r"(?<!not )(?<!Not )(?:[(（]([A-J])[)）]|\*\*[(（]?([A-J])[.)）]?\*\*)"
               r"(?! (?:is|are|was|can(?:no|')t be) (?:\w+ )?(?:wrong|incorrect|false|not|out)\b)"
               r"(?! (?:fails|cannot|can't|isn't)\b)"),
    re.compile(r"(?m)^[ \t]{0,8}(?:([A-J])(?:[.):]|[ \t]{0,8}$)|([a-j])[.)][ \t]{0,8}$)"),
)
