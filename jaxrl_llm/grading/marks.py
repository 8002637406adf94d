r"""The text of an answer without the marks of Markdown and TeX, which are no arithmetic.

"**18**", "*18*", "`18`", "$18$", "\(18\)" and "\textbf{18}" are 18; 2*3 and 3**2 stay products and
powers, since their stars touch a number on both sides. Rules: own derivation.
"""

import re

from jaxrl_llm.grading.extraction import unwrap


def unmarked(text: str) -> str:
  r"""Returns the text without emphasis, code marks, list marks, fonts and dollars of mathematics.

  A dollar sign of money stays: "**$18**" is "$18".
  """
  text = unwrap(text, _FONT)
  text = _STRUCK.sub(" ", _TAG.sub(" ", text.replace("`", " ")))
  text = _LINE_MARK.sub("", _EXCLAIMED.sub(r"\1.", text))
  for _ in range(3):  # bold in italics in bold
    plain = _EMPHASIS.sub(r"\2", text)
    if plain == text:
      break
    text = plain
  text = _DISPLAY.sub(" ", text)
  text = _CURRENCY.sub(r"\1 \2", _LONE_STARS.sub("", text))
  text = _MATH.sub(_without_dollars, text.replace("$$", " "))
  return text


def _without_dollars(match: re.Match) -> str:
  """Removes the dollars from "$x = 5$" and leaves the dollars of "$5 and $6"."""
  inside = match[1]
  formula = re.fullmatch(r"[^A-Za-z]*|.*[=\\^_].*|[A-Za-z]", inside)
  return f" {inside} " if formula else match[0]


_FONT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|boldsymbol|emph|underline"
                   r"|operatorname)\s{0,3}\{")
_DISPLAY = re.compile(r"(?<!\\)\\[()\[\]]|\\[,;:! ]|\\q?quad(?![a-zA-Z])|~(?!\d)")
# Tags, and GSM8K's calculator annotations: 2+1=<<2+1=3>>3.
_TAG = re.compile(r"</?[a-zA-Z]{1,12}>|<<[^<>\n]{1,200}>>")
_STRUCK = re.compile(r"~~[^~\n]{1,200}~~")
_LINE_MARK = re.compile(r"(?m)^[ \t]{0,8}(?:>[ \t](?!\d)|#{1,3}[ \t]|#{5,6}[ \t]"
                        r"|\|(?=[ \t]))[ \t]{0,8}|[ \t]\|[ \t]{0,8}$")
# A mark of emphasis opens before a sign and closes after one, and touches no word outside.
_EMPHASIS = re.compile(r"(?<![\w*\\^])(\*{1,3}"
                       r"|_{1,3})(?![\s*_])([^*\n]{1,400}?)(?<![\s*])\1(?![\w*])")
_EXCLAIMED = re.compile(r"([\w)]\*{1,3}|\$[\d,]{1,30}(?:\.\d{1,9})?|\d\.\d{1,9})!(?=\s|$)")  # no 5!
_LONE_STARS = re.compile(r"(?<![\w)\]}*])\*{2,3}(?=\S)|(?<=[\w.!?:%)])\*{2,3}(?!\.?\d|[\w(*])")
_CURRENCY = re.compile(r"(\d)\s?(元|円|€|£|¥|₹|块|个|人|天|岁|米|厘米|公里|千米|小时|分钟|美元)")
_MATH = re.compile(r"(?<![\\\w$])\$(?!\s)([^$\n]{1,200}?)(?<![\s\\])\$(?![\d$])")
