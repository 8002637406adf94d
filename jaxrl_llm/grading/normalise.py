"""One text for all readers: what a policy wrote, in one spelling of Unicode and of Markdown."""

import re
import unicodedata

from jaxrl_llm.grading.extraction import unwrap


def written(text: str) -> str:
  """Returns what a policy wrote before its first special token and after its thinking, in NFC.

  Every verifier reads it. Tags of thinking, of tools and of channels are no end of an answer.
  """
  special = _SPECIAL.search(text)
  text = text[:special.start()] if special else text
  return unicodedata.normalize("NFC", after_thinking(text))


def after_thinking(text: str) -> str:
  """Returns the text after the last `</think>`: all without a thought, nothing of an open one."""
  if "</think>" in text:
    return text.rsplit("</think>", 1)[1]
  return "" if "<think>" in text else text


def readable(text: str) -> str:
  r"""Returns a text in NFKC, with x² as x^2, ½ as 1/2, √2 as \sqrt{2}, ≤ as \le and − as -."""
  if not text.isascii():
    text = _SCRIPT.sub(_script, _VULGAR.sub(_fraction, text))
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2] or root[3]}}}", text)
  return text


def unmarked(text: str) -> str:
  r"""Returns a text without emphasis, tags, list marks, fonts and the dollars of mathematics.

  2*3 and 3**2 stay, since their stars touch a number on both sides, and so does money, "**$18**".
  """
  text = _EXCLAIMED.sub(r"\1.", text)  # "It is **18**!" is no factorial
  text = _TAG.sub(" ", unwrap(text, _FONT).replace("`", " ").replace(r"\$", "$"))
  text = _EMPHASIS.sub("", _LINE_MARK.sub("", text))
  text = _DISPLAY.sub(" ", text).replace("$$", " ").replace("{,}", ",")
  text = _FRACTION.sub(r" \1\2/\3", text)
  text = _CURRENCY.sub(r"\1 \2", _MATH.sub(_without_dollars, text))
  return re.sub(r"[ \t]+", " ", _NEGATIVE.sub(r"\1-", text))


def _script(match: re.Match) -> str:
  """Returns x^{12} for x¹², and x_1 for x₁."""
  mark = "_" if "₀" <= match[0][0] <= "₉" else "^"
  digits = unicodedata.normalize("NFKC", match[0]).replace("−", "-")
  return mark + (digits if len(digits) == 1 else f"{{{digits}}}")


def _fraction(match: re.Match) -> str:
  return " " + unicodedata.normalize("NFKC", match[0]).replace("⁄", "/")


def _without_dollars(match: re.Match) -> str:
  """Removes the dollars from "$x = 5$" and leaves the dollars of "$5 and $6"."""
  formula = re.fullmatch(r"[^A-Za-z]*|.*[=\\^_].*|[A-Za-z]", match[1])
  return f" {match[1]} " if formula else match[0]


_SPECIAL = re.compile(
    r"<[|｜](?!/?(?:begin_of_|end_of_)?(?:think|thought|solution|tool|python|channel|message|start\|"
    r"|end\|))[\w▁/.-]{1,40}[|｜]>|</s>|<(?:eos|pad|(?:start|end)_of_turn)>")
_SCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|[₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_ROOT = re.compile(r"√\s?(?:\{([^{}]*)\}|\(([^()]*)\)|(\w+(?:\.\d+)?))")
_SIGNS = str.maketrans({
    "−": "-", "–": "-", "—": " - ", "‐": "-", "‑": "-", "×": r"\times ", "÷": r"\div ",
    "·": r"\cdot ", "⋅": r"\cdot ", "∗": "*", "⁄": "/", "∕": "/", "∶": ":", "′": "'", "’": "'",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ",
    "∅": r"\emptyset ", "∈": r"\in ", "°": r"^\circ ", "±": r"\pm ", "≈": r"\approx ",
    "→": r"\to ", "⇒": r"\Rightarrow ", "∴": r"\therefore ", "π": r"\pi ", "θ": r"\theta ",
    "。": ".", "\u200b": "", "\ufeff": ""})
_FONT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|boldsymbol|emph|underline"
                   r"|operatorname)\s{0,3}\{")
# Tags, text that is struck out, and GSM8K's calculator annotations: 2+1=<<2+1=3>>3.
_TAG = re.compile(r"</?[a-zA-Z]{1,12}>|<<[^<>\n]{1,200}>>|~~[^~\n]{1,200}~~")
_LINE_MARK = re.compile(r"(?m)^[ \t]{0,8}(?:#{1,3}[ \t]|#{5,6}[ \t]|\|(?=[ \t]))[ \t]{0,8}"
                        r"|[ \t]\|[ \t]{0,8}$")
_EMPHASIS = re.compile(r"(?<![\w)\]}*_\\^])[*_]{1,3}(?=[^\s*_])"
                       r"|(?<=[^\s*_])[*_]{1,3}(?![\w*_(\\$-]|\.\d)")
_DISPLAY = re.compile(r"(?<!\\)\\[()\[\]]|\\[,;:! ]|\\q?quad(?![a-zA-Z])|~(?!\d)")
_FRACTION = re.compile(
    r"(-?)\\[dtc]?frac\s{0,3}\{\s{0,3}([-+]?\d+)\s{0,3}\}\s{0,3}\{\s{0,3}(\d+)\s{0,3}\}")
_NEGATIVE = re.compile(
    r"(?i)(^|\b(?:is|answer)[: ]\s*|[:=]\s*)(?:minus|negative)\s+(?=\$?\d)", re.M)
_CURRENCY = re.compile(r"(\d)\s?(元|円|€|£|¥|₹|个|人|天|岁|米|厘米|公里|小时|分钟|美元)")
_MATH = re.compile(r"(?<![\\\w$])\$(?!\s)([^$\n]{1,200}?)(?<![\s\\])\$(?![\d$])")
_EXCLAIMED = re.compile(r"([\w)]\*{1,3}|\$[\d,]{1,30}(?:\.\d{1,9})?|\d\.\d{1,9})!(?=\s|$)")
