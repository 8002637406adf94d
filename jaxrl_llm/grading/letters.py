r"""The option that a completion names: one letter, A to J.

Several letters are a hedge, whatever joins them. A letter that belongs to a formula (e^x, c=3), a
word ("A lot of energy") or a ruled-out option ("not C") names nothing. The rules are an own
derivation; tests/grading/answer_forms.jsonl has known cases.
"""

import re
from collections import deque

from jaxrl_llm.grading.extraction import answer_boxes, unwrap, without_boxes

LONGEST_BOX = 300  # characters of a box that are read
MOST = 50  # statements, the last ones, are looked at
HEDGE = "several"  # in the place of a letter


def letter(text: str) -> str | None:
  """Returns the option that a completion names, A to J, or None.

  The first of these that occurs counts, and of several the last one: the box; "answer is B",
  "ANSWER: c", "answer is c" at the end of a line, "option B"; "B is correct"; "(B) because"; "(B)"
  or "**B**" that is not ruled out ("not (A)", "(A) is wrong"); a line that is only the letter, or
  begins with "B." or "B)". A box that holds no option, as a formula, hides none that the text
  states. A hedge is no answer.
  """
  text = re.sub(r"<([A-J])>", r"(\1)", text)
  contents = answer_boxes(text)
  if contents:
    if not contents[-1]:
      return None  # it never closes, or is empty
    options = {option(content) for content in contents}
    if options != {None}:
      return None if HEDGE in options or len(options) > 1 else options.pop()
    text = without_boxes(text)
  for pattern in _STATEMENTS[:2] if contents else _STATEMENTS:
    stated = [_stated(text, match) for match in deque(pattern.finditer(text), maxlen=MOST)]
    letters = [name for name in stated if name is not None]
    if letters:
      # Several in alphabetical order are the options, as in the problem.
      listed = len(letters) > 2 and "".join(letters) in "ABCDEFGHIJ"
      return None if letters[-1] == HEDGE or listed else letters[-1]
  return None if contents else _on_lines(text)


def option(content: str) -> str | None:
  r"""Returns the letter that a box or a short answer is, `HEDGE` for several, or None.

  "B", "(B)", "B. 42", "Option B", "The answer is (B)", and small letters.
  """
  plain = _plain(content[:LONGEST_BOX])
  start = _PREFIX.match(plain).end()
  match = _BOXED.match(plain, start)
  if match is None or _ARTICLE.match(plain, match.start(1)):
    return None
  label = match[1].upper()
  if _REFUSED_BEHIND.match(plain, match.end(1)):
    return None
  return HEDGE if _is_joined(plain, match.end(1), label) else label


def _plain(content: str) -> str:
  """Returns a box's content without fonts, dollars, emphasis and TeX spaces."""
  content = unwrap(content.replace("$", ""), _FONT)
  content = re.sub(r"^\s*(['\"])(.*)\1\s*$", r"\2", content)
  content = _SPACE.sub(" ", re.sub(r"\\([{}&%#_])", r"\1", content))
  content = re.sub(r"\\(?:lor|vee)(?![a-zA-Z])", " or ", content)
  return re.sub(r"\*\*|__|\\(?:left|right)(?![a-zA-Z])|(?<![\w^])[{}]|\}", "", content).strip()


def _stated(text: str, match: re.Match) -> str | None:
  """Returns what a statement names; None if the letter is an article or ruled out."""
  number = match.lastindex
  if re.search(r"\balso\b", match[0]):
    return HEDGE
  begin, end = match.span(number)
  label = match[number].upper()
  if _ARTICLE.match(text, begin) or _REFUSED_BEFORE.search(text, max(0, begin - 70), begin):
    return None
  if _REFUSED_BEHIND.match(text, end):
    return None
  run = _RUN.match(text, end)
  same_clause = _AND.match(text, end) or (match.re is _STATEMENTS[-1] and "\n" not in run[0])
  if same_clause and _REFUSED_BEHIND.match(text, run.end()):
    return None
  before = _JOINED_BEFORE.search(text, max(0, begin - 30), begin)
  if before and before[1].upper() != label:
    return HEDGE
  return HEDGE if _is_joined(text, end, label) else label


def _is_joined(text: str, end: int, label: str) -> bool:
  """Returns whether another letter is joined to the one that ends here: "A or B", "(A), (C)".

  In "B, A and C are too small" the others begin a separate clause.
  """
  if _ELSE.match(text, end):
    return True
  listed = _LABELS.match(text, end)
  if listed and listed[1] != label and not _CLAUSE.match(text, listed.end()):
    return True
  if (also := _ALSO.match(text, end)) and also[1] != label:
    return True
  if spaced := _SPACED.match(text, end):
    return bool(set(_RUN_LETTER.findall(spaced[0])) - {label})
  run = _RUN.match(text, end)
  joined_letters = {letter.upper() for letter in _RUN_LETTER.findall(run[0])} - {label}
  return bool(joined_letters) and not _CLAUSE.match(text, run.end())


def _on_lines(text: str) -> str | None:
  """Returns the letter of lines that begin with one; None if they have several.

  If the last line is only a letter, only that letter counts, unless the line before is only
  another.
  """
  lines = [line for line in text.splitlines()[-200:] if line.strip()]
  last_letters = [match and (match[1] or match[2]).upper()
                  for match in map(_ALONE.fullmatch, map(_plain, lines[-2:]))]
  if last_letters and last_letters[-1]:
    differ = len(last_letters) > 1 and last_letters[0] not in (None, last_letters[1])
    return None if differ else last_letters[-1]
  if single := _SINGLE.fullmatch(text):
    return single[1].upper()
  matches = [match for match in map(_LABELLED.match, lines)
             if match and not _REFUSED_BEHIND.match(match.string, match.end())]
  letters = {match[1] or match[2] for match in matches}
  return letters.pop().upper() if len(letters) == 1 else None


_FONT = re.compile(r"\\(?:text|textbf|textrm|textsf|textit|mathrm|mathbf|mathsf|mathit|mbox|"
                   r"boldsymbol|bm|bf|rm|operatorname|underline)\s{0,3}\{")
_SPACE = re.compile(r"\\(?:[ ,;:!]|q?quad(?![a-zA-Z])|(?:thin|med|thick)?space(?![a-zA-Z]))|~|\s+")
# Text that never follows the letter of an option: a word, a formula, a relation.
_BEHIND = (r"(?!\w|(?<!['‘][A-Ja-j])['’])"
           r"(?!\s{0,3}(?:[=^_>≤≥≠×·+]|<(?!/))|\s{0,3}\*(?!\*)\s{0,3}\w|-\w"
           r"|\(\w{1,3}(?:,\s?\w{1,3}){0,2}\)|/\s?\w\w"
           r"|\s{0,3}\\(?!(?:text|mathrm|quad|qquad|hspace|\W)))(?!\.[a-z]|\s-\s[a-z]\b)")
_LETTER = rf"([A-J]{_BEHIND})"
_SMALL = rf"([a-j]{_BEHIND})"
# "A larger force" and "I think" name no option; "A because" does.
_ARTICLE = re.compile(
    r"[AaI] {1,3}(?!(?:is|are|was|because|since|as|or|and|with|but|not|rather|which|due|by|for"
    r"|from"
    r"|that|it|oder|et|und|y|o|if|so|would|has|does|seems)\b)[a-z]|[a-hj] [a-z]{3}(?<!and)")
_WORD = (r"(?i:ans|answers?|options?|choices?|choose|select|pick|go with|say|it|答案|选项|选择|选"
         r"|respuesta|réponse|antwort|resposta|risposta)[*\"']{0,2}")
_FILLER = (r"(?:(?i:most likely|probably|likely|clearly|definitely|therefore|thus|either|both"
           r"|indeed"
           r"|just|simply|also|option|choice|the option|the choice|letter|not [A-Ja-j],? but|"
           r"neither [A-J] nor [A-J],? but|not \([A-Ja-j]\),? but)\s{1,3}){0,2}")
_OPENING = (rf"\s{{0,3}}(?:[*$\"'_`]|\\[(\[]){{0,3}}\s{{0,3}}{_FILLER}[*$\"'_`]{{0,3}}[(（\[]?"
            r"(?:\\(?:text|mathrm|textbf|mathbf)\{)?[(（]?")
_JOIN = (r"(?:\s{0,3}[(（]?(?:[,;/|&、]|\b(?i:or|and|oder|und|et|ou|y|to|as well as|through|plus)\b"
         r"|或|和"
         r"|\s[-–—]\s|\\[lcd]?dots|\.{3}|…"
         r"|\n[ \t]{0,4}(?:[-*•]\s)?)){1,3}")
_LABEL = (r"[\s*$\"'(（{]{0,4}(?:\\text\w{0,2}\{)?[(（]?(?i:option |choice |choose |maybe "
          r"|possibly |perhaps )?")
_OTHER = rf"{_JOIN}{_LABEL}([A-J](?![\w'’=^])|(?<=[(])[a-j](?=\)))[\]）)}}*$\"']{{0,4}}"
_NEXT = r"\s{0,2}[(（]([A-J])[)）]"
_RUN = re.compile(rf"[\]）)}}*$\"'.:]{{0,4}}(?:(?<![.:])(?:{_OTHER}|(?<=[)）]){_NEXT})"
                  rf"|{_JOIN}[(（]([A-J])[)）]){{0,12}}")
_RUN_LETTER = re.compile(r"(?<![A-Za-z\\])([A-Ja-j])(?![A-Za-z])")
_JOINED_BEFORE = re.compile(rf"(?<![\w'’])([A-J])[)）}}*$]{{0,3}}{_JOIN}{_LABEL}$")
_CLAUSE = re.compile(r"[)\]*]{0,3} {1,3}(?:is|are|was|were|has|have|can|cannot|can't|could|do"
                     r"|does|don't"
                     r"|doesn't|fails?|violates?|would|will|seems?|contradicts?)\b"
                     r"(?! (?:both |all |also |equally )?(?:right|correct|true|valid|possible"
                     r"|plausible|acceptable|the answers?)\b)")
_AND = re.compile(r"[)\]*$]{0,3}\s{1,3}(?:and|or)\b")
_SPACED = re.compile(r"[)\].*$?]{0,3}(?:[ ,]{0,3}(?i:or |maybe "
                     r"|perhaps )?\(?[A-J](?![\w'’])[).?]{0,2})"
                     r"{1,9}\s*(?:$|\n)")
_ELSE = re.compile(r"[)\]*]{0,3},? or (?:maybe |perhaps |possibly )?(?:not|none|neither|else"
                   r"|another|some)\b")
# Another option with its label: "(A) 5 or (B) 6".
_LABELS = re.compile(r"[)\].:](?:(?!\b(?:because|since|as|not|unlike|while)\b)[^\n.;()]){1,40}?"
                     r"(?:[,;]|\bor\b|\band\b|\n)\s{0,2}\(?([A-J])[).:](?=\s)")
_ALSO = re.compile(r"[)\]*]{0,3},? (?:but|although|though|while)[^.\n]{0,30}\b([A-J]) [^.\n]{0,20}"
                   r"\b(?:also|possible|plausible|equally)\b")
_REFUSED_BEFORE = re.compile(
    r"(?i)(?:(?:\bnot|n't|n’t|\bcannot|\bcannot be|can not be|n't be|\bnor|\bneither|\bexcept"
    r"|\bunlike"
    r"|\bexclud\w{1,4}|\beliminat\w{1,4}|\brul\w{1,3} out|\breject\w{0,4}|\brather than"
    r"|\binstead of"
    r"|\bwithout|\bnever|不是|不选|排除)"
    r"|(?:\bmistake|\btempt\w{0,3}|\btrap|\bdistractor)\b[^.\n]{0,40}?)"
    r"\s{0,3}(?:the\s|be\s|(?:correct\s)?(?:option|choice"
    r"|answer)s?\s(?:is\s)?){0,3}[*$\"'(（{]{0,3}$")
_REFUSED_BEHIND = re.compile(
    r"[)\]*$]{0,4}(?: {1,3}(?:is|are|was|were|can(?:no|')t be|must be|seems) (?:\w+ ){0,2}?"
    r"(?:wrong|incorrect|false|not|out|impossible|excluded|eliminated|too|invalid)\b"
    r"| {1,3}(?:fails?|cannot|can't|isn't|aren't|does not|doesn't|do not|violates?|contradicts?)\b"
    r"|\s?[是为]?(?:错|不对|不正确|不符))")
_ALONE = re.compile(r"[ \t*#>$_`-]{0,8}[(（]?([A-J])[)）.*$_` \t]{0,8}"
                    r"|[ \t]{0,8}[(（]?([a-j])[.)）]{1,2}[ \t]{0,8}")
_SINGLE = re.compile(r"[\s(*\"'$\[]{0,6}([A-Ja-j])[\s)*\"'$\].:]{0,6}")
_LABELLED = re.compile(r"[ \t*#>]{0,8}(?:([A-J])(?:[.):]|[ \t]{0,8}$|,? (?:because|since|as) "
                       r"| [-–—] )|([a-j])[.)][ \t]{0,8}$)")
_PREFIX = re.compile(
    r"(?i)[\s({\[\"'*]{0,4}(?:(?:the|my|so|thus|therefore|hence),?\s+){0,2}(?:(?:final|correct"
    r"|best|"
    r"right|only)\s+){0,2}(?:(?:ans|answer|option|choice|letter|statement)s?\b|答案|选项|选)?\s*"
    r"(?:is\b|are\b|[:：=是为])?\s*(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|letter)s?\b\s*:?)?"
    r"\s*(?:(?:either|both)\s)?[(\[{（\"'*]{0,3}")
_BOXED = re.compile(rf"([A-Ja-j]){_BEHIND}")
_COPULA = (r"(?i:(?: (?:to|for|of|here)(?: \w{1,12}){0,5}?)?\s{1,3}"
           r"(?:is|are|(?:must|would|should|has to) be)|['’]s|是|为"
           r"|(?: (?:correcta|correcte|corretta|correta))?\s{1,3}(?:es|est|ist|è|é)(?: la| die)?)")
_STATEMENTS = (
    # After a colon a small letter is an option too.
    re.compile(rf"{_WORD}\s{{0,3}}[:：>]{_OPENING}(?:{_LETTER}|{_SMALL}(?=[\s.,;)）*$}}]|$))"
               rf"|{_WORD}{_COPULA}?\s{{0,3}}:?\s{{0,3}}(?:{_OPENING}{_LETTER}"
               rf"|[(（*$]{{1,3}}{_SMALL}[)）*$])"
               rf"|{_WORD}{_COPULA} {{1,3}}(?i:option |choice )?{_SMALL}"
               r"(?=\.?[ \t]{0,8}(?:\n(?!\s{0,3}or\b)|$))"),
    re.compile(rf"{_LETTER}[)）*]{{0,3}} (?:is|are|must be) "
               r"(?:clearly |therefore |thus |the ){0,2}"
               r"(?:correct|right|true|best|answer|only)\b"),
    re.compile(rf"(?i:\b(?:hence|thus|therefore|so)),?\s[(（*$]{{0,2}}{_LETTER}"
               r"[)）*$.]{0,3}[ \t]*(?:\n|$)"),
    re.compile(r"[(（]([A-J])[)）],?\s{1,3}(?:because|since|as)\b"),
    re.compile(rf"[(（]([A-J])[)）]|\*\*[(（]?{_LETTER}(?=[.)）:*]| or\b| and\b|[,/])"),
)
