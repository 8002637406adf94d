r"""One spelling of LaTeX for answers that mean the same.

`undecorated` takes off what never changes a value, `normalize` also fonts and spaces, for a
comparison of strings; `canonical` rewrites what math-verify does not read, or reads otherwise.
"""

import functools
import re

from jaxrl_llm.grading.extraction import groups, unwrap
from jaxrl_llm.grading.normalise import readable


@functools.lru_cache(1024)
def undecorated(text: str) -> str:
  r"""Returns the text without dollars, colours, sizes, bold marks, outer braces and a final stop.

  Words in \text{...} keep it, so that units and names are not confused with variables.
  """
  text = unwrap(_rewritten(readable(text), _DECORATIONS), _BOLD).strip()
  return _outer_braces(_rewritten(text, _SPELLINGS)).strip()


def normalize(text: str) -> str:
  r"""Returns LaTeX in one spelling: undecorated, without \text{}, \$ and spaces.

  A space between two digits stays: 1 1/2 is not 11/2.
  """
  text = unwrap(undecorated(text).replace(r"\$", ""), FONT)
  text = fractions(re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text))
  return _outer_braces(re.sub(r"([_^])\{(\w)\}", r"\1\2", text).rstrip("."))


def canonical(text: str) -> str:
  r"""Returns a formula as math-verify reads it.

  Signs of relations, numbers (2\,500, 1e3, 0.\overline{3}, 1 1/2), \pm, degrees of an angle and
  words such as "no solution" are rewritten.
  """
  text = _rewritten(fractions(undecorated(text).replace(r"\$", "")), _CANONICAL)
  text = text.replace("|", r"\mid ") if text.count("|") == 1 and r"\{" not in text else text
  plain = unwrap(text, FONT).strip(" .").casefold()
  text = next((meaning for pattern, meaning in _MEANINGS if pattern.fullmatch(plain)), text)
  if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])", text):
    text = re.sub(r"\(?(\d+(?:\.\d+)?)\s*\^\\circ\s*\)?", r"(\\frac{\1 \\pi}{180})", text)
  return plus_minus(_PERIODIC.sub(_periodic, text))


def list_parts(text: str) -> list[str]:
  r"""Returns the parts of a list or set: "1, 2", "1 and 2", \{1, 2\}; one part if it is none.

  Commas inside brackets do not count, nor does the comma of 1,000.
  """
  text = AND.sub(",", re.sub(r"^\\\{(.*)\\\}$", r"\1", text.strip(), flags=re.DOTALL))
  parts, depth, begin = [], 0, 0
  for match in re.finditer(r"[(\[{]|[)\]}]|[,;]", text):
    if match[0] in ",;":
      if depth == 0 and not re.match(r"\d,\d{3}(?!\d)", text[max(0, match.start() - 1):][:6]):
        parts.append(text[begin:match.start()])
        begin = match.end()
    else:
      depth += 1 if match[0] in "([{" else -1
  return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def plus_minus(text: str) -> str:
  r"""Returns the list of both values for each part with a \pm in it."""
  if not _PM.search(text):
    return text
  out = []
  for part in list_parts(text):
    part = re.sub(r"^[a-zA-Z]\s*=\s*(?=.*\\pm)", "", part)
    both = (_with_signs(part, signs) for signs in ("+-", "-+"))
    out += dict.fromkeys(value.strip().removeprefix("+") for value in both)
  return ", ".join(out)


def _with_signs(part: str, signs: str) -> str:
  r"""Returns a part with the first sign for each \pm, and the second for each \mp."""
  def sign(match: re.Match) -> str:
    return signs[match[1] == "m"]

  return _PM.sub(sign, part)


def _periodic(match: re.Match) -> str:
  integer, digits, period = match[1] or "0", match[2], match[3]
  numerator = int(integer + digits + period) - int(integer + digits)
  return rf"\frac{{{numerator}}}{{{(10**len(period) - 1) * 10**len(digits)}}}"


def exact_decimals(text: str) -> str:
  r"""Returns the text with every decimal as a fraction, so that it equals nothing by rounding."""
  return re.sub(r"(?<![\w.])(\d*)\.(\d{1,300})(?![\d.])", lambda m: (
      rf"\frac{{{int((m[1] or '0') + m[2])}}}{{{10**len(m[2])}}}"), text)


def fractions(text: str) -> str:
  r"""Returns the text with \dfrac, \tfrac, \frac12 and \frac{1}2 written as \frac{..}{..}."""
  return _rewritten(text, _FRACTIONS)


def _rewritten(text: str, rules: tuple[tuple[re.Pattern, str], ...]) -> str:
  for pattern, replacement in rules:
    text = pattern.sub(replacement, text)
  return text


def _outer_braces(text: str) -> str:
  spans = groups(text, None)
  while spans and spans[-1][0] == 0 and spans[-1][2] == len(text) - 1:
    text = text[1:-1]
    spans = [(start - 1, content - 1, end - 1) for start, content, end in spans[:-1]]
  return text


def _rules(*rules: tuple[str, str]) -> tuple[tuple[re.Pattern, str], ...]:
  return tuple((re.compile(pattern, re.DOTALL), replacement) for pattern, replacement in rules)


AND = re.compile(
    r"\s*,?\s*(?:\\(?:text|mathrm|mbox)\s?\{\s*(?:and|or)\s*\}|\\(?:lor|vee)(?![a-zA-Z])|"
    r"(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))\s*")
FONT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s{0,3}\{")
_BOLD = re.compile(r"\\(?:boldsymbol|underline|vec|bm|mathbf|mathit|mathsf|emph|textit)\s{0,3}\{")
_DECORATIONS = _rules(
    (r"(?<=,)\\!\s*|\\!", ""), (r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~", " "),
    (r"\\(?:left|right|middle|[bB]igg?[lr]?|displaystyle|textstyle|limits|[lL]arge|LARGE|bf|rm|it)"
     r"(?![a-zA-Z])", ""),
    (r"\\[()\[\]]|(?<!\\)\$", ""), (r"\\textcolor\s?\{[\w!#.,-]{1,40}\}\s?\{", "{"),
    (r"\\color\s?\{[\w!#.,-]{1,40}\}|\\phantom\s?\{\w*\}", ""))
_SPELLINGS = _rules(
    (r"^(\*\*|__|`)(.*)\1$", r"\2"),
    (r"\{([^{}]{1,100})\\over(?![a-zA-Z])([^{}]{1,100})\}", r"\\frac{\1}{\2}"),
    (r"[(\[]\s*\\begin\{array\}\s?\{[clr|\s]*\}(.*?)\\end\{array\}\s*[)\]]",
     r"\\begin{pmatrix}\1\\end{pmatrix}"),
    # 20th, 20\text{th}, 20^{\text{th}}
    (r"(?<!\d)(\d{1,40})\s?\^?\s?\{?\s?(?:\\text\s?\{)?(?:st|nd|rd|th)\}{0,2}(?![a-zA-Z])", r"\1"),
    (r"(?:[\s.,;:]|\\+(?=$|\s))+$", ""))
_TOKEN = r"(\d|[a-zA-Z]|\\(?:pi|theta|alpha|beta|lambda)(?![a-zA-Z]))"
_FRACTIONS = _rules(
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"), (r"\\d?t?binom(?![a-zA-Z])", r"\\binom"),
    (rf"\\frac(?![a-zA-Z])\s*{_TOKEN}\s*{_TOKEN}", r"\\frac{\1}{\2}"),  # \frac12, \frac ab
    (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
    (rf"(\\frac\{{[^{{}}]{{1,100}}\}})\s*{_TOKEN}", r"\1{\2}"))  # \frac{1}2
_CANONICAL = _rules(
    (r"(\^|\\sqrt)\s*(\\frac\{[^{}]*\}\{[^{}]*\}|\\pi(?![a-zA-Z]))", r"\1{\2}"),  # \sqrt\pi
    (r"\\(?:text|mathrm)\s?\{\s*([a-zA-Z])\s*\}", r"\1"),  # 2\mathrm{i}
    (r"\\leq?(?:slant|q)?(?![a-zA-Z])|<=", r"\\le "),
    (r"\\geq?(?:slant|q)?(?![a-zA-Z])|>=", r"\\ge "), (r"\\neq(?![a-zA-Z])|!=", r"\\ne "),
    (r"\\langle", "("), (r"\\rangle", ")"), (r"\{,\}", ","),
    (r"\^?\s*\{?\s*\\(?:circ|degree)(?![a-zA-Z])\s*\}?", r"^\\circ "),
    (r"^\s*[a-zA-Z]\s*\\in(?![a-zA-Z])\s*(?=[(\[]|\\(?:\{|mathbb|emptyset))", ""),  # x \in [0,1]
    # 1,500\pi; a comma after a bracket may belong to a pair
    (r"(?<![\d.,(\[{])(\d{1,3}),(\d{3})(?=(?:\.\d+)?\s{0,3}(?:\\(?:pi|sqrt)|[a-z]))", r"\1\2"),
    (r"(?<=\d)[ ~](?=\d{3}(?![\d ]))", ""),
    (r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,4})(?!\w)", r"\1 \\times 10^{\2}"),
    (r"(?<![\d.}^_])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", r"(\1+\\frac{\2}{\3})"),
    (r"(?<![\d./^_])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", r"(\1+\\frac{\2}{\3})"))
_PM = re.compile(r"\\([pm])[pm](?![a-zA-Z])\s*")
_PERIODIC = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\overline\s?\{(\d{1,40})\}(?!\d)")
_MEANINGS = _rules(
    (r"\\\{\s*\\\}|\\varnothing|\\emptyset|(?:the )?empty set|(?:there (?:is|are) )?no (?:real )?"
     r"(?:solution|value|root)s?|none", r"\emptyset"),
    (r"(?:all |the )?(?:set of )?(?:all )?real(?: number)?s", r"\mathbb{R}"),
    (r"\+?(?:\\infty|infinity|infinitely many(?: solutions)?)", r"\infty"),
    (r"(?:-|negative |minus )(?:\\infty|infinity)", r"-\infty"),
    *((word, str(number)) for number, word in enumerate(
        "zero one two three four five six seven eight nine ten".split())))
