"""Where the answer stands in a completion, and the verdicts that need no algebra.

`judge` tries cheap comparisons first. For kind `math` it may end in a `Question`, which a worker
process decides with math-verify (tasks/verifier_pool.py). Order of the comparisons and extraction
rules: own derivation; the known pairs are in tests/tasks/test_verifiers.py.
"""

import dataclasses
import re
from collections import deque
from decimal import Decimal
from fractions import Fraction

import numpy as np

from jaxrl_llm.registry import VERIFIERS

KINDS = ("exact", "numeric", "math", "choice")
NO_ANSWER = "no answer"  # unscored: the problem has none
LONGEST = 1000  # characters; a longer answer, also longer than four times the gold, is wrong


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Whether an answer is right, and the rung of the comparison that decided it.

  Attributes:
    correct: also False if no verdict exists.
    rung: "missing" (nothing to compare), "string", "number", "letter", "length", "algebra", "own"
      (a plugin's verifier), or "none" if unscored.
    unscored_reason: why no verdict exists ("timeout", "crash: ...", "no answer"), or None.
  """

  correct: bool
  rung: str
  unscored_reason: str | None = None


def register(name: str, *, replace: bool = False):
  """Returns a decorator that enters a verifier: `(text, answer) -> bool` or `Verdict`.

  Args:
    name: value of `task.data.verifier`, or of a mapping's `verifier`.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.

  Raises:
    ValueError: the name is taken.
  """
  return VERIFIERS.register(name, replace=replace)


@dataclasses.dataclass(frozen=True)
class Question:
  """Two expressions, without their boxes, whose equality needs algebra.

  The relation is not symmetric: gold x>2 accepts (2, oo), and gold (2, oo) refuses x>2.
  """

  gold: str
  prediction: str


def judge(kind: str, completion: str, answer: str) -> Verdict | Question:
  """Returns the verdict on one completion, or the question that is left for a worker.

  All kinds read the text after the thinking block. They compare

    exact    the box's content, or without a box the whole text, up to white space.
    numeric  the last number of the box, or without a box of the text. Commas between thousands,
             `$`, `%`, units and leading zeros do not count: 5% is 5. 1/2 and \\frac{1}{2} are
             numbers.
    choice   a letter A to J; see `letter`.
    math     the last box, which must exist: as strings, as numbers, then by algebra.

  A verifier of a plugin gets the same text and the answer, without white space around it.

  Raises:
    ValueError: unknown kind.
  """
  if kind not in VERIFIERS:
    raise ValueError(f"verifier kind {kind!r} is unknown; allowed are {', '.join(VERIFIERS)}.")
  gold = _gold(answer or "") if kind in ("numeric", "math", "choice") else (answer or "").strip()
  if not gold:
    return Verdict(False, "none", NO_ANSWER)
  text = after_thinking(completion)
  if kind in KINDS:
    return VERIFIERS[kind].function(text, gold)
  return _own(kind, text, gold)


def _own(kind: str, text: str, gold: str) -> Verdict:
  """Returns the verdict of a verifier from a plugin, whose failure leaves the row unscored."""
  entry = VERIFIERS[kind]
  try:
    said = entry.function(text, gold)
  except Exception as error:
    return Verdict(False, "none", f"crash: {entry.where}: {type(error).__name__}: {error}")
  if isinstance(said, Verdict):
    return said
  if not isinstance(said, (bool, np.bool_)):
    return Verdict(False, "none", f"crash: {entry.where} returned {said!r}; True or False was "
                   "expected")
  return Verdict(bool(said), "own")


def answer_key(completion: str, kind: str | None = None) -> str | None:
  """Returns a text that is the same for equal answers, for votes and counts of distinct answers.

  Args:
    kind: exact, numeric, choice and math take what `judge` compares. None takes the box, else the
      text after the last `####`, else after the last `=`, else all of the text, without white
      space.

  Returns:
    None if there is no answer. Answers that only algebra finds equal have different keys.
  """
  text = after_thinking(completion)
  box = last_boxed(text)
  kind = kind if kind in KINDS else None  # what a plugin's verifier compares is unknown
  if kind == "choice":
    return letter(text)
  if kind == "numeric":
    value = last_number(text if box is None else box)
    return None if value is None else str(value)
  if kind == "math" or (kind is None and box is not None):
    plain = normalize((box or "")[:LONGEST])
    value = plain_number(plain)
    return None if not plain else plain if value is None else format(value.normalize(), "f")
  if kind is None:
    text = text.rsplit("####", 1)[-1].rsplit("=", 1)[-1]
    return "".join(text.split()) or None
  return " ".join((text if box is None else box).split()) or None


def after_thinking(text: str) -> str:
  """Returns the text after the last `</think>`, or the whole text if it has no thinking block.

  A thinking block that is never closed leaves nothing.
  """
  if "</think>" in text:
    return text.rsplit("</think>", 1)[1]
  return "" if "<think>" in text else text


def last_boxed(text: str) -> str | None:
  r"""Returns the content of the last \boxed{...} whose braces balance, or None.

  Escaped braces do not count as braces. Of nested boxes the outer one counts, and the inner ones
  are unwrapped.
  """
  outermost = []
  for start, inside, end in _groups(text, _BOX):  # an outer group closes after its inner groups
    while outermost and outermost[-1][0] > start:
      outermost.pop()
    outermost.append((start, inside, end))
  if not outermost:
    return None
  _, inside, end = outermost[-1]
  return _unwrap(text[inside:end], _BOX).strip()


def normalize(text: str) -> str:
  r"""Returns LaTeX in one spelling: without spaces, `$`, \left, \text{} and a final stop.

  \dfrac and \frac12 become \frac and \frac{1}{2}. A space between two digits stays: 1 1/2 is not
  11/2.
  """
  text = _MATH_SPACE.sub(" ", text.replace("−", "-").replace(r"\!", ""))
  text = text.replace(r"\$", "").replace("$", "").replace(r"\(", "").replace(r"\)", "")
  text = _unwrap(_SIZES.sub("", text), _FONT)
  text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
  text = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)
  text = re.sub(r"\\frac(\d)(\d)(?!\d)", r"\\frac{\1}{\2}", text).rstrip(".")
  groups = _groups(text, None)
  while groups and groups[-1][0] == 0 and groups[-1][2] == len(text) - 1:
    text = text[1:-1]
    groups = [(start - 1, inside - 1, end - 1) for start, inside, end in groups[:-1]]
  return text


def plain_number(text: str) -> Decimal | None:
  """Returns the exact value of an integer or decimal, with or without thousands commas.

  None if the text holds anything else.
  """
  match = _PLAIN.fullmatch(text.replace("{,}", ","))
  return Decimal(match[0].replace(",", "")) if match else None


def last_number(text: str) -> Fraction | None:
  r"""Returns the last number or fraction in a text, or None.

  None also if it has more than 400 characters or the denominator 0. A minus after a digit, letter
  or bracket is not its sign.
  """
  text = _FRACTION.sub(r"\1\2/\3", text.replace("−", "-").replace("{,}", ","))
  found = next(iter(deque(_NUMBER.finditer(text), maxlen=1)), None)
  if found is None or len(found[0]) > 400:
    return None
  below = int(found[3] or 1)
  if below == 0:
    return None
  value = Fraction(Decimal(found[2].replace(",", ""))) / below
  return -value if found[1] == "-" else value


def letter(text: str) -> str | None:
  """Returns the option that a completion names, A to J, or None.

  The first of these that occurs counts, and of several the last one: the box; "answer is B",
  "answer: (B)" or "option B"; "(B)" or "**B**"; a line that is only the letter, or begins with "B."
  or "B)".
  """
  box = last_boxed(text)
  if box is not None:
    match = re.match(r"\(?([A-Ja-j])\)?(?![a-zA-Z])", normalize(box[:100]).lstrip("{*"))
    return match[1].upper() if match else None
  for pattern in _LETTERS:
    if found := [next(filter(None, match.groups())) for match in pattern.finditer(text)]:
      return found[-1]
  return None


@register("exact")
def _exact(text: str, gold: str) -> Verdict:
  box = last_boxed(text)
  said = " ".join((text if box is None else box).split())
  return Verdict(said == " ".join(gold.split()), "string" if said else "missing")


@register("numeric")
def _numeric(text: str, gold: str) -> Verdict:
  expected = last_number(gold)
  if expected is None:
    return Verdict(False, "none", f"the answer {gold[:40]!r} holds no number")
  box = last_boxed(text)
  said = last_number(text if box is None else box)
  return Verdict(said == expected, "missing" if said is None else "number")


@register("choice")
def _choice(text: str, gold: str) -> Verdict:
  expected = re.fullmatch(r"\(?([A-Ja-j])[.)]?", gold.strip())
  if expected is None:
    return Verdict(False, "none", f"the answer {gold[:40]!r} is no letter from A to J")
  said = letter(text)
  return Verdict(said == expected[1].upper(), "missing" if said is None else "letter")


@register("math")
def _math(text: str, gold: str) -> Verdict | Question:
  said = last_boxed(text)
  if not said:
    return Verdict(False, "missing")
  if len(said) > max(LONGEST, 4 * len(gold)):
    return Verdict(False, "length")
  said_plain, gold_plain = normalize(said), normalize(gold)
  if said_plain == gold_plain:
    return Verdict(True, "string")
  numbers = plain_number(said_plain), plain_number(gold_plain)
  if None not in numbers:
    if numbers[0] == numbers[1]:
      return Verdict(True, "number")
    if all(number == number.to_integral_value() for number in numbers):
      # two different integers; decimals may be equal to the gold's precision
      return Verdict(False, "number")
  return Question(_bare(gold), _bare(said))


def _gold(answer: str) -> str:
  """Returns an answer without the brackets of a list of one, without its box and dollars."""
  text = str(answer).strip()
  if match := re.fullmatch(r"\[\s*(['\"])(.*)\1\s*\]", text, re.DOTALL):
    text = match[2].replace("\\\\", "\\")
  box = last_boxed(text)
  return (_bare(text) if box is None else box).strip()


def _bare(text: str) -> str:
  r"""Removes dollars, which would end the formula that the text is put into; \$ is a unit."""
  return text.replace(r"\$", "").replace("$", "").strip()


def _groups(text: str, opener: re.Pattern | None) -> list[tuple[int, int, int]]:
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


def _unwrap(text: str, opener: re.Pattern) -> str:
  """Replaces each group that `opener` begins by its content."""
  cuts = sorted(cut for start, inside, end in _groups(text, opener)
                for cut in ((start, inside), (end, end + 1)))
  kept, position = [], 0
  for start, end in cuts:
    kept.append(text[position:start])
    position = end
  return "".join(kept) + text[position:]


_BOX = re.compile(r"\\(?:f?boxed|fbox)\s{0,3}\{")
_FONT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s{0,3}\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is skipped whole
_MATH_SPACE = re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![a-zA-Z])")
# Every pattern takes linear time even on a hostile text: repeats are bounded, or what follows them
# cannot match inside of them. (Possessive repeats before a lookahead are wrong in Python 3.11.2.)
_DIGITS = r"(?:\d{1,3}(?:,\d{3}(?!\d))*(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_PLAIN = re.compile(rf"[-+]?(?:{_DIGITS})")
_NUMBER = re.compile(rf"((?<![\w).\]}}])[-+])?({_DIGITS})(?:\s{{0,3}}/\s{{0,3}}(\d+)(?![.,]?\d))?")
_FRACTION = re.compile(
    r"(-?)\\[dtc]?frac\s{0,3}\{\s{0,3}([-+]?\d+)\s{0,3}\}\s{0,3}\{\s{0,3}(\d+)\s{0,3}\}")
_LETTER = r"([A-HJ](?![a-zA-Z])|I(?![a-zA-Z']| [a-z]))"  # "answer: I think" names no option
_LETTERS = (
    re.compile(
        r"(?i:answer|option|choice)(?i:\s{1,3}is)?\s{0,3}:?\s{0,3}[*$\"']{0,3}\(?(?:\\text\{)?" +
        _LETTER),
    re.compile(r"\(([A-J])\)|\*\*\(?([A-J])[.)]?\*\*"),
    re.compile(r"(?m)^[ \t]{0,8}([A-J])(?:[.):]|[ \t]{0,8}$)"),
)
