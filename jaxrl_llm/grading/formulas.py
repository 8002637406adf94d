r"""What is left for algebra: two formulas of which math-verify reads everything that matters.

It reads 5 in "\neq 5", "n \mid 5", "2x = 5" and "5\text{ or more}", loses the names of x=3, y=5,
and takes {0,1} for (0,1). So only formulas are asked about whose relation signs, bounding words,
unread commands, names and brackets are alike.
"""

import dataclasses
import re

from jaxrl_llm.grading import latex
from jaxrl_llm.grading.extraction import unwrap
from jaxrl_llm.grading.latex import FONT, list_parts
from jaxrl_llm.grading.quantities import equal, known_unit, quantity


@dataclasses.dataclass(frozen=True)
class Question:
  """Two formulas whose equality needs algebra.

  Attributes:
    gold, prediction: LaTeX, without box. Decimals of the prediction are written as fractions.
    decimals: of a gold that is a decimal with at least three significant digits, which a formula
      equals if it rounds to it; None: equality is exact.
    tolerance: numbers are equal up to it; None: no tolerance was published with the gold.
  """

  gold: str
  prediction: str
  decimals: int | None = None
  tolerance: float | None = None


def question(gold: str, answer: str) -> Question | bool:
  """Returns the question whether two formulas are equal, both as the checker reads them.

  It is a verdict where both are then the same text, or where the checker would not read all.
  """
  value = quantity(gold)
  decimals = value.digits[0] if value and value.digits and value.digits[1] >= 3 else None
  plain = [_SYSTEM.sub("", latex.undecorated(text)) for text in (gold, answer)]
  names, texts = zip(*map(_named, plain), strict=True)
  texts = texts if any(names) else [_values(*plain), _values(*plain[::-1])]
  is_unnamed = "" in names and _form(texts[names[0] > ""]) == "("
  if None in texts or (names[0] != names[1] and not is_unnamed):
    return False
  formulas = [latex.canonical(text) for text in texts]
  same = formulas[0].replace(" ", "") == formulas[1].replace(" ", "")
  if same or r"\equiv" in formulas[0] + formulas[1] or not _comparable(*formulas):
    return same
  if decimals is None:
    formulas[0] = latex.exact_decimals(formulas[0])
  return Question(_kept_letters(formulas[0]), _kept_letters(latex.exact_decimals(formulas[1])),
                  decimals)


def bounds(text: str) -> list[str]:
  """Returns the words that bound, deny or qualify a number."""
  plain = " ".join(re.sub(r"\\[a-zA-Z]+", " ", unwrap(text, FONT)).casefold().split())
  return sorted(_BOUND.findall(plain))


def _values(text: str, other: str) -> str | None:
  """Returns 5 for "x = 5", "2 + 3 = 5" and "f(2) = 5", if the other formula is no equation.

  None for "2x = 5" and "9 = 10". Of two equations, the right sides are left if the left sides are
  the same, or both are functions: f(x) = 2x and y = 3x.
  """
  text = re.sub(r"^([^=a-zA-Z]+)=\s*([a-zA-Z])\s*$", r"\2 = \1", text)  # 10 = x
  name, _, right = text.partition("=")
  if "=" not in _SUBSCRIPT.sub("", text):
    return text
  if "=" in _SUBSCRIPT.sub("", other):
    alike = _FUNCTION.match(text) and _FUNCTION.match(other)
    same = name.strip() == other.partition("=")[0].strip() and len(list_parts(text)) == 1
    return right if alike or same else text
  out = []
  for part in list_parts(text):
    name, _, right = part.rpartition("=")
    name = name.rpartition("=")[2].strip()
    sides = [quantity(name), quantity(right)]
    if (None not in sides and not equal(*sides)) or bounds(name) or (
        name and not _NAME.fullmatch(name) and re.search("[a-z|]", _NUMERIC.sub("", name))):
      return None
    out.append(right)
  return ", ".join(out)


def _comparable(gold: str, answer: str) -> bool:
  """Returns whether the checker reads all of two formulas, or the parts that it skips are alike."""
  if any(part(gold) != part(answer) for part in (bounds, _unread)):
    return False
  forms = [_form(text) for text in (gold, answer)]
  signs = [_signs(text) for text in (gold, answer)]
  if signs[0] != signs[1]:  # x > 2 may be an interval
    return ([] in signs and {*signs[0], *signs[1]} <= {"<", r"\le"}
            and not {*forms} & {"single", "list", "{"})
  return forms[0] == forms[1] or {*forms} == {"list", "{"} or (
      "set" in forms and "single" not in forms)


def _signs(text: str) -> list[str]:
  r"""Returns the signs of inequalities, in one direction: 9 \ge k is k \le 9."""
  return sorted(match[0].replace("ge", "le").replace(">", "<") for match in _SIGN.finditer(text))


def _unread(text: str) -> list[str]:
  """Returns the commands that the checker may drop, dots, and derivatives with their places."""
  names = re.findall(r"\\([a-zA-Z]+)", text.replace(r"\\", " "))
  return sorted([*(name for name in names if name not in _READ),
                 *re.findall(r"'+(?:\([^()]*\))?|\.\.", text)])


def _form(text: str) -> str:
  r"""Returns "{", "(" or "[" of a bracketed list, "set" of \mathbb{R}, "list", or "single"."""
  if re.search(r"\\cup|\\setminus|\\mathbb|\\emptyset|[<>]|\\[lg]e", text):
    return "set"
  body, depth = text.strip().replace(r"\{", "{").replace(r"\}", "}"), 0
  if body[:1] in ("{", "(", "[") and len(list_parts(body[1:-1])) > 1:
    for position, sign in enumerate(body):
      depth += (sign in "({[") - (sign in ")}]")
      if depth == 0:
        return body[0] if position == len(body) - 1 else "list"
  return "list" if len(list_parts(text)) > 1 else "single"


def _named(text: str) -> tuple[str, str]:
  """Returns ("x,y", "(3,5)") for "y=5, x=3" and "(x,y)=(3,5)"; ("", text) for anything else."""
  plain = latex.AND.sub(", ", text.replace(r"\\", ", ").replace("&", ""))
  if match := _TUPLE.match(plain):
    return match[1].replace(" ", ""), plain[match.end():]
  parts = sorted(part.split("=") for part in list_parts(plain))
  names = [name.strip() for name, *_ in parts]
  if len({*names}) < max(2, len(parts)) or not all(
      len(part) == 2 and re.fullmatch("[a-zA-Z]", part[0].strip()) for part in parts):
    return "", text
  return ",".join(names), f"({', '.join(value for _, value in parts)})"


def _kept_letters(formula: str) -> str:
  """Returns a formula with its last letters in braces, since the checker takes them for a unit."""
  match = _LAST.search(formula)
  if match is None or (len(match[1]) > 1 and known_unit(match[1])):
    return formula
  return f"{formula[:match.start(1)]}{{{match[1]}}}"


_SUBSCRIPT = re.compile(r"_\s?\{[^{}]*\}")
_TUPLE = re.compile(r"\s*\(\s*([a-zA-Z](?:\s*,\s*[a-zA-Z])+)\s*\)\s*=\s*")
_NUMERIC = re.compile(r"\\(?!not)[a-z]+|x(?=\s?\d)")
_NAME = re.compile(r"(?:[A-Za-z]|\\(?!not)[a-z]+|\\(?:text|mathrm)\s?\{[A-Za-z .]+\}|\|?[A-Z]{2}\|?"
                   r"|\\angle\s?[A-Z]+)(?:_\{?\w+\}?|\^\{-1\})?'*(?:\([\w,]+\))?"
                   r"|[a-z] ?[-+] ?[a-z]")
_FUNCTION = re.compile(r"\s*(?:[a-zA-Z](?:\^\{-1\})?\([a-zA-Z]\)|y)\s*=\s*(?=[^=]+$)")
_SIGN = re.compile(r"\\(?:le|ge|ne)(?![a-z])|!=|[<>]=?|->|=>")
_BOUND = re.compile(
    r"\b(?:(?:or|and) (?:so )?(?:more|less|fewer|greater|higher|lower|above|below|larger|smaller|up"
    r"|over|under|so on|else|another)|at (?:least|most)|(?:more|less|fewer|greater|larger|smaller"
    r"|higher|lower|other) than|not|never|except|multiples?|divisible|divides|divisors?|factors?"
    r"|exceed\w*|up to|between|unless|if|plus|minus|negative|under|over|above|below|even|odd|any"
    r"|all|none|unknown|possibly|maybe|perhaps|either|neither|but|squared|cubed|factorial|wrong"
    r"|false|approaches|without|remainder|times|half|twice|double|mod|hundred|thousand|million"
    r"|billion|dozens?|to(?= [-({\d]))\b")
_SYSTEM = re.compile(r"\\(?:begin|end)\{(?:cases|aligned|gathered|array)\}(?:\{[lcr]+\})?")
_LAST = re.compile(r"[\d}\s]\s*(?<![a-zA-Z\\])([cdghlmost]|[a-z]{2})\s*$")
_READ = frozenset((
    "alpha beta gamma delta epsilon varepsilon theta lambda mu pi rho sigma tau phi varphi omega"
    " Gamma Delta Theta Lambda Sigma Phi Omega frac sqrt cdot times div infty cup cap setminus"
    " binom sum prod int lim sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp"
    " max min gcd lfloor rfloor lceil rceil lvert rvert left right begin end mathbb mathbf"
    " mathrm text textbf mbox operatorname circ degree angle triangle overline emptyset varnothing"
    " pm mp mod bmod pmod prime approx le ge ne").split())
