r"""Names of variables that the checker would drop or compare: units, indices, parameters.

math-verify takes letters at the end for units, and reads 3 in "3t" and b^2+2 in "b^2+2ab". Braces
keep the letters: "3{t}". Own derivation.
"""

import re

from jaxrl_llm.grading import units
from jaxrl_llm.grading.extraction import unwrap
from jaxrl_llm.grading.latex import FONT


def kept_variables(formula: str, other: str) -> str:
  r"""Returns a formula with its last one or two letters in braces, unless they are a unit.

  They are a unit if it is known and has a space before it, as in "2\sqrt{3} m", and if neither
  formula has a variable. Where both are plain numbers, a unit needs no space: "3m".

  Args:
    other: the formula to compare with.
  """
  match = _LAST.search(formula)
  if match is None:
    return formula
  letters, start = match[1], match.start(1)
  plain = _PLAIN.fullmatch(formula[:start]) and _PLAIN.fullmatch(other)
  is_separate = len(letters) > 1 or formula[start - 1].isspace() or plain
  before = {*_letters(_NAME.sub("", formula[:start])), *_letters(_NAME.sub("", other))}
  is_product = bool(before) if len(letters) == 1 else {*letters} <= before
  if is_separate and not is_product and _is_unit(letters):
    return formula
  return f"{formula[:start]}{{{letters}}}"


def _is_unit(letters: str) -> bool:
  return units.parse(letters) is not None and letters not in units.PRODUCTS


def unnamed(gold: str, answer: str) -> tuple[str, str] | None:
  """Returns two formulas without their names: 3x for "f'(x) = 3x" and for "y' = 3x".

  None if they name different derivatives, or values at different numbers. A side that is no
  equation names whatever the other does. A name that the formula goes on to use, as in y' = 2y, is
  part of it.
  """
  heads = [_head(text) for text in (gold, answer)]
  plain = [head == ("y", 0, "") or head is None for head in heads]
  if all(plain) or any(head is None and "=" in text
                       for head, text in zip(heads, (gold, answer), strict=True)):
    return gold, answer
  if None not in heads and heads[0][1:] != heads[1][1:]:
    return None
  return _HEAD.sub("", gold), _HEAD.sub("", answer)


def _head(text: str) -> tuple[str, int, str] | None:
  """Returns ("y" of a bare y and "f" of others, order of the derivative, number at which it is)."""
  match = _HEAD.match(text)
  if match is None or (match["name"] and re.search(
      rf"(?<![a-zA-Z\\]){match['name']}(?![a-zA-Z])", text[match.end():])):
    return None
  primes = match["order"] or ""
  order = 1 if match["by"] else primes.count("'") + primes.count("p")
  at = match["at"] if match["at"] and match["at"][-1].isdigit() else ""
  bare = match["name"] and match.end("name") == len(match[0].rstrip(" ="))
  return "y" if bare else "f", order, at


def unindexed(formula: str, other: str) -> str:
  """Returns "x=3, x=-3" for "x_1=3, x_2=-3", if the other formula has no indices."""
  names = _INDEXED.findall(formula)
  if len(names) < 2 or len({*names}) > 1 or "_" in other:
    return formula
  return _INDEXED.sub(r"\1=", formula)


def one_parameter(gold: str, answer: str) -> tuple[str, str]:
  """Drops "k \\in Z" after both formulas, and gives the parameter one name.

  Where one formula does not say what its parameter is, it is the letter that the other has not.
  """
  matches = [_PARAMETER.search(text) for text in (gold, answer)]
  gold, answer = (text[:match.start()] if match else text
                  for text, match in zip((gold, answer), matches, strict=True))
  names = [match[1] if match else None for match in matches]
  if names == [None, None]:
    return gold, answer
  letters = [{*_letters(_NAME.sub("", text))} for text in (gold, answer)]
  others = [letters[0] - letters[1], letters[1] - letters[0]]
  names = [name or (min(other) if len(other) == 1 else None)
           for name, other in zip(names, others, strict=True)]
  return gold, answer if None in names else _renamed(answer, {names[1]: names[0]})


def one_constant(gold: str, answer: str) -> tuple[str, str]:
  """Gives the free constants of an answer the gold's names: "x + K" is "x + C".

  They are C, or C_1 and C_2, of a gold in a variable without words and other capital letters; an
  answer may have A, B, K, or small letters that the gold has not.
  """
  constants = [*dict.fromkeys(_CONSTANT.findall(gold))]
  letters = {*_letters(_CONSTANT.sub("", gold))} - {"e"}
  if not constants or not letters or FONT.search(gold) or any(map(str.isupper, letters)):
    return gold, answer
  free = [name for name in dict.fromkeys(_FREE.findall(answer))
          if name in constants or name[0] not in letters]
  if len(free) != len(constants) or {*free} & {*constants}:
    return gold, answer
  return gold, _renamed(answer, dict(zip(free, constants, strict=True)))


def _renamed(formula: str, names: dict[str, str]) -> str:
  def new_name(match: re.Match) -> str:
    return names[match[0]]

  pattern = "|".join(map(re.escape, names))
  return re.sub(rf"(?<![a-zA-Z\\])(?:{pattern})(?![a-df-zA-Z_{{])", new_name, formula)


def _letters(formula: str) -> str:
  """Returns the letters of a formula that are variables."""
  return re.sub(r"\\[a-zA-Z]+|[^a-zA-Z]|(?<![a-zA-Z])[a-zA-Z]{3,}", "", unwrap(formula, FONT))


_LAST = re.compile(r"[\d}\s]\s*(?<![a-zA-Z\\])([cdghlmost]|[a-z]{2})\s*$")
_PLAIN = re.compile(r"\s*-?(?:\d[\d.,]*|\\frac\{\d+\}\{\d+\})\s*")
# f(x) =, f'(x) =, f'(2) =, y' =, \frac{dy}{dx} =, \frac{d}{dx}f(x) =
_HEAD = re.compile(
    r"^\s*(?:(?P<name>[a-zA-Z])(?P<order>'{1,3}|\^\s?\{?\s*(?:\\prime\s*)+\}?)?"
    r"(?:\^\s?\{\s*-1\s*\})?\s?(?:\((?P<at>[a-zA-Z]|-?\d{1,9})\))?"
    r"|(?P<by>\\frac\s?\{d\s?[a-zA-Z]?\}\s?\{d\s?[a-zA-Z]\}"
    r"(?:\s?[a-zA-Z]\([a-zA-Z]\)|\([^()=]*\))?))\s*=\s*(?=[^=]+$)")
_CONSTANT = re.compile(r"(?<![a-zA-Z\\])C(?:_\d|_\{\d\})?(?![a-df-zA-Z_{(])")
_FREE = re.compile(r"(?<![a-zA-Z\\])(?:[ABCK]|[ck](?=_|\W*$))(?:_\d|_\{\d\})?(?![a-df-zA-Z_{(])")
_NAME = re.compile(r"^\s*[A-Za-z](?:_\{?\w+\}?)?\s*=")
_INDEXED = re.compile(r"([a-z])_\{?\d\}?\s*=\s*")
_PARAMETER = re.compile(r"\s*[,;]?\s*(?:\\text\s?\{[^{}]*\}\s*)?\(?\s*([a-z])\s*\\in\s*"
                        r"\\(?:mathbb|mathbf)\s*\{?[ZNRQ]\}?\s*(?:\^?\+)?\)?\s*$")
