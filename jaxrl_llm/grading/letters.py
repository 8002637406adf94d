r"""The option that a completion names: one letter, A to J.

Several letters are a hedge, whatever joins them. A letter that belongs to a formula (e^x, c=3), a
word ("A lot of energy") or a ruled-out option ("not C") names nothing.
"""

import re
from collections import deque

from jaxrl_llm.grading.extraction import answer_boxes, unwrap, without_boxes
from jaxrl_llm.grading.normalise import readable

LONGEST_BOX = 300  # characters of a box that are read
MOST = 50  # statements, the last ones, are looked at
HEDGE = "several"  # in the place of a letter


def letter(text: str) -> str | None:
  """Returns the option that a completion names, A to J, or None.

  The first of these that occurs counts, and of several the last one: the box; "answer is B",
  "ANSWER: c", "option B"; "(B)" or "**B**" that is not ruled out ("not (A)", "(A) is wrong"); a
  line that is only the letter, or begins with "B." or "B)". A box that holds no option, as a
  formula, hides none after a mark. A hedge is no answer.
  """
  text = re.sub(r"<([A-J])>", r"(\1)", readable(text))
  contents = answer_boxes(text)
  if contents:
    options = {option(content) for content in contents}
    if not contents[-1] or options != {None}:  # a last box that never closes is empty
      return None if HEDGE in options or len(options) > 1 else options.pop()
    text = without_boxes(text)
  for pattern in _STATEMENTS[:1] if contents else _STATEMENTS:
    choices = [_stated(text, match) for match in deque(pattern.finditer(text), maxlen=MOST)]
    letters = [name for name in choices if name is not None]
    if letters:
      # Several in alphabetical order are the options, as in the problem.
      is_list = len(letters) > 2 and "".join(letters) in "ABCDEFGHIJ"
      return None if letters[-1] == HEDGE or is_list else letters[-1]
  return None if contents else _on_lines(text)


def option(content: str) -> str | None:
  r"""Returns the letter that a box or a short answer is, `HEDGE` for several, or None.

  "B", "(B)", "B. 42", "Option B", "The answer is (B)", and small letters.
  """
  plain = _plain(content[:LONGEST_BOX])
  match = _BOXED.match(plain, _PREFIX.match(plain).end())
  if match is None or _ARTICLE.match(plain, match.start(1)) or _REFUSED.match(plain, match.end(1)):
    return None
  label = match[1].upper()
  return HEDGE if _has_other(plain[match.end(1):], label) else label


def _plain(content: str) -> str:
  """Returns a box's content without fonts, dollars, emphasis and TeX spaces."""
  content = unwrap(content.replace("$", ""), _FONT)
  content = re.sub(r"^\s*(['\"])(.*)\1\s*$", r"\2", content)
  content = re.sub(r"\\[ ,;:!]|\\q?quad(?![a-zA-Z])|~|\s+", " ",
                   re.sub(r"\\([{}&%#_])", r"\1", content))
  return re.sub(r"\*\*|__|\\(?:left|right)(?![a-zA-Z])|(?<![\w^])[{}]|\}", "", content).strip()


def _stated(text: str, match: re.Match) -> str | None:
  """Returns what a statement names; None if the letter is an article or ruled out."""
  begin, end = match.span(match.lastindex)
  label = match[match.lastindex].upper()
  if _ARTICLE.match(text, begin) or _REFUSED.match(text, end) or (
      _REFUSED_BEFORE.search(text, max(0, begin - 70), begin)):
    return None
  prefix = _JOINED_BEFORE.search(text, max(0, begin - 30), begin)
  if re.search(r"\balso\b", match[0]) or (prefix and prefix[1].upper() != label):
    return HEDGE
  return HEDGE if _has_other(text[end:end + 200], label) else label


def _has_other(rest: str, label: str) -> bool:
  """Returns whether the clause behind a letter offers another: "A or B", "(A) 5, (B) 6", "A? B?".

  In "B, A and C are too small" the others are ruled out, and a reason may name any.
  """
  if _ELSE.match(rest):
    return True
  rest = rest[:_CLAUSE_END.search(rest).start()]
  return any(other[1].upper() != label and not _REFUSED_LATER.match(rest, other.end())
             for other in _OTHER.finditer(rest))


def _on_lines(text: str) -> str | None:
  """Returns the letter of a last line that is only one, else of the only line that begins with one.

  There is none if the line before is only another.
  """
  lines = [line for line in text.splitlines()[-200:] if line.strip()]
  alone = [match and match[1].upper() for match in map(_ALONE.fullmatch, map(_plain, lines[-2:]))]
  if alone and alone[-1]:
    return None if len(alone) > 1 and alone[0] not in (None, alone[1]) else alone[-1]
  choices = [_stated(line, match) for line in lines if (match := _LABELLED.match(line))]
  return choices[0] if len({*choices}) == 1 and choices[0] != HEDGE else None


_FONT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox|bf|rm|operatorname)\s{0,3}\{")
# Text that never follows the letter of an option: a word, a formula, a relation.
_BEHIND = (r"(?!\w|(?<!['‘][A-Ja-j])')(?!\s{0,3}(?:[=^_>×+]|<(?!/))|\s{0,3}\*(?!\*)\s{0,3}\w|-\w"
           r"|\(\w{1,3}(?:,\s?\w{1,3}){0,2}\)|/\s?\w\w"
           r"|\s{0,3}\\(?!(?:text|mathrm|quad|hspace|\W)))(?!\.[a-z]|\s-\s[a-z]\b)")
_LETTER, _SMALL = rf"([A-J]{_BEHIND})", rf"([a-j]{_BEHIND})"
# "A larger force" and "I think" name no option; "A because" does.
_ARTICLE = re.compile(
    r"[AaI] {1,3}(?!(?:is|are|was|because|since|as|or|and|with|but|not|rather|that|if|so)\b)[a-z]"
    r"|[a-hj] [a-z]{3}(?<!and)")
_WORD = (r"(?i:ans|answers?|options?|choices?|choose|select|pick|say|it|答案|选项|选择|选)"
         r"[*\"']{0,2}")
_OPENING = (r"\s{0,3}(?:[*$\"'_`]|\\[(\[]){0,3}\s{0,3}(?:(?i:probably|likely|clearly|therefore|thus"
            r"|either|both|indeed|also|(?:the )?(?:option|choice)|letter|not \(?[A-Ja-j]\)?,? but"
            r"|neither [A-J] nor [A-J],? but)\s{1,3}){0,2}[*$\"'_`]{0,3}[(\[]?"
            r"(?:\\(?:text|mathrm|textbf|mathbf)\{)?\(?")
_COPULA = (r"(?i:(?: (?:to|for|of)(?: \w{1,12}){0,5}?)?\s{1,3}"
           r"(?:is|are|(?:must|would|should) be)|'s|是|为)")
_STATEMENTS = (
    # After a colon a small letter is an option too.
    re.compile(rf"{_WORD}\s{{0,3}}[:>]{_OPENING}(?:{_LETTER}|{_SMALL}(?=[\s.,;)*$}}]|$))"
               rf"|{_WORD}{_COPULA}?\s{{0,3}}:?\s{{0,3}}(?:{_OPENING}{_LETTER}"
               rf"|[(*$]{{1,3}}{_SMALL}[)*$])"),
    re.compile(rf"\(([A-J])\)|\*\*\(?{_LETTER}(?=[.):*]| or\b| and\b|[,/])"),
)
_BOXED = re.compile(rf"([A-Ja-j]){_BEHIND}")
_PREFIX = re.compile(
    r"(?i)[\s({\[\"'*]{0,4}(?:(?:the|so|thus|therefore|hence),?\s+){0,2}(?:(?:final|correct|best)"
    r"\s+)?(?:(?:ans|answer|option|choice|letter)s?\b|答案|选项|选)?\s*(?:is\b|are\b|[:=是为])?\s*"
    r"(?:(?:the\s+)?(?:option|choice|letter)s?\b\s*:?)?\s*(?:(?:either|both)\s)?[(\[{\"'*]{0,3}")
_ALONE = re.compile(r"[\s(\[\"'*]*([A-Ja-j])[\s)\].\"'*:]*")
_LABELLED = re.compile(
    r"\s{0,8}[(*\"']{0,3}([A-J])(?:[.):]|['\"*]|, |(?= - )|(?= or\b)|(?=/[A-J]\b))")
_JOINED_BEFORE = re.compile(r"(?<![\w'])([A-J])[)}*$]{0,3}\s*(?:[,;/|&、-]|\b(?:or|and|to)\b|\n)"
                            r"[\s,*$\"'({-]{0,4}(?:or |and |option |maybe )?\(?$")
_OTHER = re.compile(
    r"(?:(?:\b(?:or|and|but|to|also|through|plus|as well as)\b|[,;/&|、?\n-]|\.\s|\.{3}|dots"
    r"|(?:\\lor|\\vee)(?![a-z])|[或和])[\s,\n*-]*(?:(?i:or|and|maybe|possibly|perhaps|option)\s)*"
    r"[\s(*$\"'{]{0,4}(?:\\text\w{0,2}\{)?\(?|[)\s]\()"
    r"([A-J](?![\w'=^])|(?<=\()[a-j](?=\))|[b-hj](?=\W*$))")
_ELSE = re.compile(r"[)\]*]{0,3},? or (?:maybe |perhaps )?(?:not|none|neither|else|another|some)\b")
_CLAUSE_END = re.compile(r"\b(?:because|since|(?<!well )as(?! well)|not|rather than|unlike|while)\b"
                         r"|\.\s+(?=[A-Z][a-z]|A [a-z])(?!Or\b)|\Z")
_WRONG = (r"[)\]*$]{0,4}(?: {1,3}(?:(?:is|are|was|were|can(?:no|')t be|must be) (?:\w+ ){0,2}?"
          r"(?:wrong|incorrect|false|not|out|impossible|excluded|eliminated|too|invalid|ruled)"
          r"|fails?|cannot|can't|isn't|aren't|does not|doesn't|do not|violates?|contradicts?)\b"
          r"|\s?[是为]?(?:错|不对|不正确|不符))")
_REFUSED = re.compile(_WRONG)
_REFUSED_LATER = re.compile(r"(?:[)*,\s]{0,3}(?:\b(?:and|or)\b)?[\s(*]{0,3}[A-J]\b){0,8}" + _WRONG)
_REFUSED_BEFORE = re.compile(
    r"(?i)(?:(?:\bnot|n't|\bcannot(?: be)?|\bnor|\bneither|\bexcept|\bunlike|\bexclud\w{1,4}"
    r"|\beliminat\w{1,4}|\brul\w{1,3} out|\breject\w{0,4}|\brather than|\binstead of|\bwithout"
    r"|\bnever|不是|不选|排除)|(?:\bmistake|\btrap|\bdistractor)\b[^.\n]{0,40}?)\s{0,3}(?:the\s|be\s"
    r"|(?:correct\s)?(?:option|choice|answer)s?\s(?:is\s)?){0,3}[*$\"'({]{0,3}$")
