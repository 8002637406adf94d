r"""One spelling of LaTeX for answers that mean the same.

`undecorated` takes off what never changes a value: dollars, fonts, colours, sizes, bold marks.
`normalize` also takes off spaces, for a comparison of strings. `canonical` rewrites what
math-verify does not read, or reads otherwise: inequalities, empty sets, mixed and periodic numbers,
plus-minus. Rules: own derivation; the known pairs are in tests/grading/answer_pairs.jsonl.
"""

import functools
import re

from jaxrl_llm.grading import inequalities
from jaxrl_llm.grading.extraction import groups, unwrap
from jaxrl_llm.grading.spellings import spelled


@functools.lru_cache(1024)
def undecorated(text: str) -> str:
  r"""Returns the text without dollars, fonts, colours, sizes, markdown bold and a final stop.

  Words in \text{...} keep it, so that units and names are not confused with variables.
  """
  text = _without(spelled(text), _PHANTOM)
  text = _SIZES.sub("", _SPACES.sub(" ", _NEGATIVE_SPACE.sub("", text)))
  for delimiter in (r"\(", r"\)", r"\[", r"\]"):
    text = text.replace(delimiter, "")
  text = _DOLLAR.sub("", text)
  text = _COLOR.sub("", _TEXTCOLOR.sub("{", text))
  text = unwrap(text, _BOLD).strip()
  text = re.sub(r"^(\*\*|__|`)(.*)\1$", r"\2", text, flags=re.DOTALL)
  text = re.sub(r"(?:[\s.,;:]|\\+(?=$|\s))+$", "", _over(text))
  return _outer_braces(text).strip()


def normalize(text: str) -> str:
  r"""Returns LaTeX in one spelling: undecorated, without \text{}, \$ and spaces.

  \dfrac and \frac12 become \frac and \frac{1}{2}. A space between two digits stays: 1 1/2 is not
  11/2.
  """
  text = unwrap(undecorated(text).replace(r"\$", ""), FONT)
  text = fractions(re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text))
  text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
  return _outer_braces(text.rstrip("."))


def canonical(text: str) -> str:
  r"""Returns a formula as math-verify reads it; see the module's text for what is rewritten."""
  text = _BARE_ARGUMENT.sub(r"\1{\2}", fractions(undecorated(text).replace(r"\$", "")))
  text = _FUNCTION.sub("", _LABEL.sub("", text))
  text = re.sub(r"^\\text\s?\{([^{}]*\d[^{}]*,[^{}]*)\}$", r"\1", text)
  if text.count("|") == 1 and r"\{" not in text:
    text = text.replace("|", r"\mid ")
  text = _progression(_modulus(_plain_digits(text)))
  text = _words(text)
  text = _brackets(text)
  text = _radians(text)
  text = plus_minus(text)
  return inequalities.interval(text) or text


def words(text: str) -> str | None:
  r"""Returns a name or a phrase in one spelling: small letters, no article, sorted around "and".

  None if the text holds anything but words: a digit, a sign, only single letters, or what may be a
  difference of products, ab-c.
  """
  plain = unwrap(undecorated(text), FONT).replace("~", " ")
  if not FONT.search(text) and _DIFFERENCE.search(plain):
    return None
  plain = re.sub(r"\(([A-Za-z])\)", r"\1", plain)
  if not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[\s,.'’-])*", plain):
    return None
  if not re.search(r"[^\W\d_]{2}|,", plain):
    return None
  plain = _FRAME.sub("", plain.casefold())
  parts = re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", plain)
  phrases = [re.sub(r"^(?:the|an|a)\s+|[\s.'’-]+", "", part) for part in parts]
  phrases = [_SYNONYMS.get(phrase, phrase) for phrase in phrases if phrase]
  return ",".join(sorted(phrases)) or None


def list_parts(text: str) -> list[str]:
  r"""Returns the parts of a list or set: "1, 2", "1 and 2", \{1, 2\}; one part if it is none.

  Commas inside brackets do not count, nor does the comma of 1,000.
  """
  text = text.strip()
  if text.startswith(r"\{") and text.endswith(r"\}"):
    text = text[2:-2]
  text = inequalities.AND.sub(",", text)
  parts, depth, begin = [], 0, 0
  for match in re.finditer(r"[(\[{]|[)\]}]|[,;]", text):
    if match[0] in "([{":
      depth += 1
    elif match[0] in ")]}":
      depth -= 1
    elif depth == 0 and not _THOUSANDS_COMMA.match(text, max(0, match.start() - 1)):
      parts.append(text[begin:match.start()])
      begin = match.end()
  parts.append(text[begin:])
  return [part.strip() for part in parts if part.strip()]


def plus_minus(text: str) -> str:
  r"""Returns the list of both values for each part with a \pm in it."""
  if not _PM.search(text):
    return text
  out = []
  for part in list_parts(text):
    if _PM.search(part):
      head = re.match(r"^[a-zA-Z]\s*=\s*", part)
      part = part[head.end():] if head else part
      out += [_signed(part, "+-"), _signed(part, "-+")]
    else:
      out.append(part)
  return ", ".join(out)


def _signed(part: str, signs: str) -> str:
  replacements = {r"\pm": signs[0], r"\mp": signs[1]}
  return _PM.sub(lambda match: replacements[match[0].strip()], part).strip().removeprefix("+")


def _plain_digits(text: str) -> str:
  r"""Rewrites 2\,500, 2{,}500, 1e3, 0.\overline{3} and 1 1/2 as numbers that every parser reads."""
  text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text.replace("{,}", ","))
  text = re.sub(r"(?<![\d.])(\d{1,3})((?:[ ~]\d{3})+)(?![\d ])",
                lambda m: m[1] + re.sub(r"[ ~]", "", m[2]), text)
  text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,4})(?!\w)", r"\1 \\times 10^{\2}", text)
  text = _PERIODIC.sub(_periodic, text)
  text = re.sub(r"(?<![\d.}^_])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", r"(\1+\\frac{\2}{\3})", text)
  text = re.sub(r"(?<![\d./^_])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", r"(\1+\\frac{\2}{\3})", text)
  return re.sub(r"(?<![A-Za-z])C\((\d+),\s*(\d+)\)", r"\\binom{\1}{\2}", text)


def _modulus(text: str) -> str:
  r"""Rewrites \pmod{4} and (\bmod 4) as \bmod 4."""
  return re.sub(r"\(?\\[pb]?mod(?![a-z])\s*\{?\s*(\w+)\s*\}?\)?", r"\\bmod \1", text)


def _progression(text: str) -> str:
  r"""Writes out 1,2,\dots,5, if it has at most a hundred terms."""
  def written_out(match: re.Match) -> str:
    first, second, last = int(match[1]), int(match[2]), int(match[3])
    step = second - first
    terms = range(first, last + (1 if step > 0 else -1), step) if step else ()
    complete = 2 < len(terms) <= 100 and terms[-1] == last
    return ",".join(map(str, terms)) if complete else match[0]

  return _DOTS.sub(written_out, text)


def _periodic(match: re.Match) -> str:
  integer, fixed, period = match[1] or "0", match[2], match[3] or match[4]
  denominator = (10**len(period) - 1) * 10**len(fixed)
  numerator = int(integer + fixed + period) - int(integer + fixed)
  return rf"\frac{{{numerator}}}{{{denominator}}}"


def _words(text: str) -> str:
  """Rewrites words that mean a set or a number."""
  plain = _FRAME.sub("", unwrap(text, FONT).strip(" .").casefold())
  if re.fullmatch(r"\\\{\s*\\\}|\\varnothing|\\emptyset|\\phi|(?:the )?empty set|null set", plain):
    return r"\emptyset"
  if re.fullmatch(r"(?:there (?:is|are) )?no (?:such |real |integer |positive )?"
                  r"(?:solution|value|number|integer|root)s?|none", plain):
    return r"\emptyset"
  if plain in _NUMERALS:
    return str(_NUMERALS.index(plain))
  if re.fullmatch(r"(?:all |the )?(?:set of )?(?:all )?real(?: number)?s", plain):
    return r"\mathbb{R}"
  if endless := re.fullmatch(r"([-+]|positive |negative |minus )?(?:infinity|inf)", plain):
    return r"-\infty" if (endless[1] or "+")[0] in "-nm" else r"\infty"
  return text


def _brackets(text: str) -> str:
  r"""Rewrites \langle 1,2 \rangle, A(1,2) and ]1,3[."""
  text = text.replace(r"\langle", "(").replace(r"\rangle", ")")
  text = re.sub(r"^\s*[A-Z]'?\s*=?\s*(?=\([^()]*,[^()]*\)\s*$)", "", text)
  opened = re.fullmatch(r"\s*([\[\]])\s*([^\[\]]+,[^\[\]]+)\s*([\[\]])\s*", text)
  if opened and (opened[1], opened[3]) != ("[", "]"):
    return f"{'[' if opened[1] == '[' else '('}{opened[2]}{']' if opened[3] == ']' else ')'}"
  return text


def _radians(text: str) -> str:
  r"""Rewrites degrees inside of a formula: \sin 30^\circ."""
  text = _DEGREE.sub(r"^\\circ ", text)
  if not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])", text):
    return text
  return re.sub(r"\(?(\d+(?:\.\d+)?)\s*\^\\circ\s*\)?", r"(\\frac{\1 \\pi}{180})", text)


def column_as_tuple(text: str) -> str:
  r"""Returns a column vector as (1,2), and any other text as it is."""
  match = _COLUMN.fullmatch(text)
  if match is None:
    return text
  return f"({','.join(part.strip() for part in match[1].split(_ROW_END))})"


def exact_decimals(text: str) -> str:
  r"""Returns the text with every decimal as a fraction, so that it equals nothing by rounding."""
  return _DECIMAL.sub(
      lambda m: rf"\frac{{{int((m[1] or '0') + m[2])}}}{{{10**len(m[2])}}}", text)


def fractions(text: str) -> str:
  r"""Returns the text with \dfrac, \tfrac, \frac12 and \frac{1}2 written as \frac{..}{..}."""
  text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
  text = re.sub(r"\\d?t?binom(?![a-zA-Z])", r"\\binom", text)
  text = _FRACTION.sub(r"\\frac{\1}{\2}", text)
  text = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", text)
  return _BELOW.sub(r"\1{\2}", text)


def _over(text: str) -> str:
  r"""Rewrites {1 \over 2} and {5 \choose 2}, whose braces belong to them."""
  text = re.sub(r"\{([^{}]{1,100})\\over(?![a-zA-Z])([^{}]{1,100})\}", r"\\frac{\1}{\2}", text)
  return re.sub(r"\{([^{}]{1,100})\\choose(?![a-zA-Z])([^{}]{1,100})\}", r"\\binom{\1}{\2}", text)


def _outer_braces(text: str) -> str:
  spans = groups(text, None)
  while spans and spans[-1][0] == 0 and spans[-1][2] == len(text) - 1:
    text = text[1:-1]
    spans = [(start - 1, inside - 1, end - 1) for start, inside, end in spans[:-1]]
  return text


def _without(text: str, opener: re.Pattern) -> str:
  """Removes each group that `opener` begins, with its content."""
  for start, _, end in sorted(groups(text, opener), reverse=True):
    text = text[:start] + text[end + 1:]
  return text


_DOLLAR = re.compile(r"(?<!\\)\$")
_NEGATIVE_SPACE = re.compile(r"(?<=,)\\!\s*|\\!")
_SPACES = re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|\\(?:thin|med|thick)space|~")
_SIZES = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lr]?|displaystyle|textstyle|limits|"
    r"[lL]arge|LARGE|[hH]uge|normalsize|small|bf|rm|it)(?![a-zA-Z])")
_BOLD = re.compile(
    r"\\(?:boldsymbol|underline|vec|bm|pmb|ensuremath|mathbf|mathit|mathsf|emph|textit)\s{0,3}\{")
FONT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s{0,3}\{")
_PHANTOM = re.compile(r"\\[hv]?phantom\s{0,3}\{")
_COLOR = re.compile(r"\\color\s{0,3}(?:\[\w{1,20}\])?\{[\w!#.,-]{1,40}\}")
_TEXTCOLOR = re.compile(r"\\textcolor\s{0,3}(?:\[\w{1,20}\])?\{[\w!#.,-]{1,40}\}\s{0,3}\{")
_DIFFERENCE = re.compile(r"(?<![^\W\d_])[a-z]{1,3}\s{0,3}-\s{0,3}[a-z]{1,3}(?![^\W\d_])")
# 1,500\pi and 1,234x; a comma after a bracket may belong to a pair.
_THOUSANDS = re.compile(
    r"(?<![\d.,(\[{])\d{1,3}(?:,\d{3})+(?=(?:\.\d+)?\s{0,3}(?:\\(?:pi|sqrt)|[a-z]))")
_LABEL = re.compile(
    r"^(?:\\text(?:bf)?\{)?(?:(?:[Tt]he\s+)?(?:[Ff]inal\s+)?[Aa]nswer\s*(?::|is|=)\s*\}?)\s*(?=\S)")
_TOKEN = r"(\d|[a-zA-Z]|\\(?:pi|theta|alpha|beta|lambda)(?![a-zA-Z]))"
_FRACTION = re.compile(rf"\\frac(?![a-zA-Z])\s*{_TOKEN}\s*{_TOKEN}")  # \frac12, \frac ab
_BELOW = re.compile(rf"(\\frac\{{[^{{}}]{{1,100}}\}})\s*{_TOKEN}")  # \frac{1}2
_BARE_ARGUMENT = re.compile(  # 2^\frac{1}{2}, \sqrt\pi
    r"(\^|\\sqrt)\s*(\\frac\{[^{}]*\}\{[^{}]*\}|\\pi(?![a-zA-Z]))")
_FUNCTION = re.compile(r"^[a-zA-Z]\([a-zA-Z]\)\s*=\s*")
_THOUSANDS_COMMA = re.compile(r"\d,\d{3}(?!\d)")
_PM = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])\s*")
_PERIODIC = re.compile(
    r"(?<![\d.])(\d*)\.(\d*)(?:\\overline\s?\{(\d{1,40})\}|\\dot\s?\{?(\d)\}?)(?!\d)")
_DOTS = re.compile(r"(-?\d{1,6})\s*,\s*(-?\d{1,6})\s*,\s*(?:-?\d{1,6}\s*,\s*){0,3}"
                   r"(?:\\[lcd]?dots|\.\.\.)\s*,\s*(-?\d{1,6})(?!\d)")
_DEGREE = re.compile(r"\^?\s*\{?\s*\\(?:circ|degree)(?![a-zA-Z])\s*\}?|\^\s*\{?\\text\s?\{o\}\}?")
_DECIMAL = re.compile(r"(?<![\w.])(\d*)\.(\d{1,300})(?![\d.])")
_SYNONYMS = {"dne": "doesnotexist", **dict.fromkeys(
    ("infinite", "infinitelymanysolutions", "infinitesolutions", "infinitenumberofsolutions",
     "infinitelymanysolution"), "infinitelymany")}
# A sentence around an answer in words: "the function is odd", "the series converges".
_FRAME = re.compile(
    r"^(?:there (?:is|are) (?=no |an? |infinite)"
    r"|(?:it|they|the (?:given |final )?(?:answer|equation"
    r"|system|function|statement|claim|sequence|series|limit|integral|lines?|planes?|vectors"
    r"|number|triangle|graph|matrix|inequality|value))"
    r" (?:(?:is|are|has|have) (?:an? (?=\w))?|(?=(?:con|di)verges?\.?$|does not exist\.?$)))")
_NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
             "eleven", "twelve")
_COLUMN = re.compile(r"\s*\\begin\{[pbv]?matrix\}([^&]*)\\end\{[pbv]?matrix\}\s*")
_ROW_END = r"\\"
