r"""Signs and commands that are only another spelling: \lbrace is \{, x² is x^2, 20^{th} is 20.

Only spellings without a choice are rewritten here; what depends on the other formula is decided in
grading/comparisons.py. Rules: own derivation.
"""

import re


def spelled(text: str) -> str:
  """Returns a formula with plain signs, in the spelling that grading/latex.py reads."""
  if not text.isascii():
    text = _ROOT.sub(_root, _SCRIPT.sub(_script, text)).translate(_SIGNS)
  text = _FORMULA.sub(_formula, text) if "\\ce" in text else text
  text = _components(text)
  for pattern, replacement in _COMMANDS:
    text = pattern.sub(replacement, text)
  text = _ORDINAL.sub(_cardinal, _SEMICOLON.sub(r"\1\2,\3\4", text))
  return without_apostrophes(_repeated(dollars(text)))


def dollars(text: str) -> str:
  """Returns "$5.25" for "5 dollars and 25 cents", and "$5 thousand" for "$5k"."""
  return _DOLLARS_AND_CENTS.sub(_dollars, _THOUSAND.sub(r"\1 thousand", text))


def _dollars(match: re.Match) -> str:
  return f"${match[1]}.{match[2].zfill(2)}"


def without_apostrophes(text: str) -> str:
  """Returns 1'234 as 1234."""
  return _APOSTROPHE.sub("", text)


def _formula(match: re.Match) -> str:
  r"""Returns SO_4^{2-} for \ce{SO4^{2-}}."""
  return re.sub(r"(?<=[A-Za-z)\]])(\d{1,3})", r"_{\1}", match[1])


def _components(text: str) -> str:
  r"""Returns (1,-2,0) for \mathbf{i} - 2\mathbf{j}; other texts as they are."""
  names = _UNIT_VECTOR.findall(text)
  if len(names) < 2 or names != sorted({*names}):
    return text
  *coefficients, end = _UNIT_VECTOR.split(text)[::2]
  signed = [f"+{coefficients[0]}", *coefficients[1:]]
  if end.strip(" .)$") or not all(map(_COEFFICIENT.fullmatch, signed)):
    return text
  coefficients = [re.sub(r"\s", "", part) for part in coefficients]
  values = {name: f"{part}1" if part in ("", "+", "-") else part.removeprefix("+")
            for name, part in zip(names, coefficients, strict=True)}
  return f"({', '.join(values.get(name, '0') for name in _AXES[:3 if 'k' in names else 2])})"


def _cardinal(match: re.Match) -> str:
  """Returns 20 for 20th; 2st is a product."""
  number = int(match[1][-2:])
  suffix = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
  return match[1] if match[4] == suffix else match[0]


def _script(match: re.Match) -> str:
  r"""Returns x^{12} for x¹², and x_1 for x₁."""
  digits, mark = match[0].translate(_SCRIPTS), "_" if match[1] else "^"
  return mark + (digits if len(digits) == 1 else f"{{{digits}}}")


def _root(match: re.Match) -> str:
  degree = {"√": "", "∛": "[3]", "∜": "[4]"}[match[1]]
  return rf"\sqrt{degree}{{{match[2] if match[3] is None else match[3]}}}"


def _repeated(text: str) -> str:
  r"""Returns 0.1666... as 0.1\overline{6}: one digit three times, or several twice."""
  if "dots" not in text and "..." not in text:
    return text
  return _REPEATED.sub(r".\1\\overline{\2\3}", text)


_FORMULA = re.compile(r"\\ce\s?\{((?:[^{}]|\{[^{}]*\}){1,100})\}")
_UNIT_VECTOR = re.compile(r"\\(?:mathbf|hat|vec|boldsymbol|bm)\s?\{\s?"
                          r"(?:\\mathbf\s?\{\s?)?\\?([ijk])(?:math)?\s?\}{1,2}")
_AXES = "ijk"
_COEFFICIENT = re.compile(r"\s?[-+]{1,2}\s?[^-+=,]{0,60}")
_SIGNS = str.maketrans({
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full width
    "−": "-", "–": "-", "‐": "-", "‑": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∗": "*", "⁄": "/", "∕": "/", "∶": ":", "′": "'",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≦": r"\le ",
    "≧": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in ",
    "∖": r"\setminus ", "∨": r"\lor ", "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ",
    "≈": r"\approx ", "…": "...", "△": r"\triangle ", "∠": r"\angle ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}",
    "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}", "⅕": r"\frac{1}{5}", "⅙": r"\frac{1}{6}",
    **{letter: rf"\mathbb{{{name}}}" for letter, name in zip("ℝℤℚℕℂ", "RZQNC", strict=True)},
    **{letter: rf"\{name} " for letter, name in zip(
        "αβγδεθλμπρστφωΔΣΩ",
        ("alpha beta gamma delta epsilon theta lambda mu pi rho sigma tau phi omega Delta Sigma"
         " Omega").split(), strict=True)},
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u3000": " ", "\u200b": "", "\ufeff": ""})
_SCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ₀₁₂₃₄₅₆₇₈₉", "0123456789-n0123456789")
_SCRIPT = re.compile("([₀₁₂₃₄₅₆₇₈₉]+)|[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+")
_ROOT = re.compile(r"([√∛∜])\s{0,3}(?:(\d+(?:\.\d+)?|\w|\([^()]*\))|\{([^{}]*)\})")
_FONTS = r"\\(?:text|mathrm|mbox|textrm)\s?"
# A fraction of two units: \frac{\text{m}}{\text{s}}.
_UNITS = (rf"\\[dt]?frac\s?\{{\s*{_FONTS}\{{([^{{}}]*)\}}\s*\}}"
          rf"\s?\{{\s*{_FONTS}\{{([^{{}}]*)\}}(\^\d|\^\{{\d\}})?\s*\}}")
_COMMANDS = tuple((re.compile(pattern), replacement) for pattern, replacement in (
    (r"\\lbrace(?![a-zA-Z])", r"\\{"), (r"\\rbrace(?![a-zA-Z])", r"\\}"),
    (r"\\lbrack(?![a-zA-Z])", "["), (r"\\rbrack(?![a-zA-Z])", "]"),
    (r"\s?\\colon(?![a-zA-Z])\s?|\{:\}|\\text\s?\{:\}", ":"),
    (r"\\textdollar(?![a-zA-Z])\s?(?:\{\})?", r"\\$"),
    (r"\\pounds(?![a-zA-Z])\s?(?:\{\})?", "£"), (r"\\euro(?![a-zA-Z])\s?(?:\{\})?", "€"),
    (r"(?:\\text\s?\{\s?US\s?\}|\bUS)\s?(?=\\?\$\s?\d)", ""),
    (r"\\(?:sfrac|nicefrac)(?![a-zA-Z])", r"\\frac"), (r"\\wedge(?![a-zA-Z])", r"\\land"),
    (r"\\\\\[\d{1,3}(?:\.\d{1,3})?(?:pt|ex|em|mm)\]", r"\\\\"),
    (rf"^\s*{_FONTS}\{{\s*(?:negative|minus)\s*\}}\s*(?=[\d\\(])", "-"),
    (rf"^(\s*{_FONTS}\{{\s*)(?:negative|minus)\s+(?=\d)", r"\1-"),
    (r"\{\s?-\s?\}(?=\s?[\d\\])", "-"),
    (r"(?<=\d)(?:\\[,; ]|\s){0,3}(?:\\text\s?\{\s?([kM])\s?\})?\s?\\Omega(?![a-zA-Z])\s?$",
     r"\\text{ \1ohm}"),
    (rf"(?<=\S)(?:\\?\s){{0,3}}\(\s?{_FONTS}\{{\s?mod\s?\}}(?:\\?\s)?(\w{{1,40}})\s?\)",
     r"\\pmod{\1}"),
    (r"(?<=\.)(\d{0,40})\\dot\s?\{?(\d)\}?(\d{0,40})\\dot\s?\{?(\d)\}?", r"\1\\overline{\2\3\4}"),
    (r"\\hspace\*?\s?\{[^{}]*\}", " "),
    (r"\\log_\s?(?:e(?![a-zA-Z])|\{e\})", r"\\ln "),
    (r"(?<=\.)(\d{0,40})\\bar\s?(?:\{(\d{1,40})\}|(\d))", r"\1\\overline{\2\3}"),
    (rf"{_FONTS}\{{\s?([ie])\s?\}}", r" \1 "),
    (_UNITS, r"\\text{\1/\2\3}"),
    (r"(?:\{\})?[_^]\s?\{?(\d+)\}?\s?(?:\\mathrm\{C\}|C)_\s?\{?(\d+)\}?", r"\\binom{\1}{\2}"),
    (r"\\Delta(?=\s*\{?[A-Z]{3}(?![A-Za-z]))", r"\\triangle"),
    (rf"^\s*(?:{_FONTS}\{{(?:line )?segment\s*\}}\s*)?\\overline\s?\{{\s*([A-Z])\s*([A-Z])\s*\}}"
     r"\s*$", r"\1\2"),
    (rf"^\s*{_FONTS}\{{(?:line )?segment\s*\}}\s*([A-Z]{{2}})\s*$", r"\1"),
    (r"([(\[])\s*\\begin\{array\}\s?\{[clr|\s]*\}(.*?)\\end\{array\}\s*(?:\\right\s?)?[)\]]",
     r"\\begin{pmatrix}\2\\end{pmatrix}"),
    (r"\\left\s?(?=\\begin\{pmatrix\})", ""),
))
# 20th, 20\text{th}, 20^{th}, 20^\text{th}, 20^{\text{th}}
_ORDINAL = re.compile(rf"(?<!\d)(\d{{1,40}})\s?\^?\s?(\{{\s?)?({_FONTS}\{{)?(st|nd|rd|th)"
                      r"(?(3)\})(?(2)\s?\})(?![a-zA-Z])")
# [0;1) and (0;1) with semicolons for commas.
_SEMICOLON = re.compile(r"([\[(\]])([^;,()\[\]]{1,60});([^;,()\[\]]{1,60})([\])\[])")
_APOSTROPHE = re.compile(r"(?<=\d)['’](?=\d{3}(?!\d))")
_DOLLARS_AND_CENTS = re.compile(r"\$?(?<![\d,])(\d[\d,]{0,30}) dollars?,? (?:and )?"
                                r"(\d{1,2}) cents?\b")
_THOUSAND = re.compile(r"(\$\s?\d[\d,.]{0,30}(?<!,))[kK](?![a-zA-Z])")
_REPEATED = re.compile(r"(?<=\d)\.(\d{0,12}?)(?:(\d)\2{2,20}|(\d{2,8})\3{1,8})"
                       r"\s?(?:\\[lc]?dots|\.\.\.)(?!\s?,)")
