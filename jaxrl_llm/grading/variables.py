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
  if is_separate and not is_product and units.parse(letters) is not None:
    return formula
  return f"{formula[:start]}{{{letters}}}"


def unindexed(formula: str, other: str) -> str:
  """Returns "x=3, x=-3" for "x_1=3, x_2=-3", if the other formula has no indices."""
  names = _INDEXED.findall(formula)
  if len(names) < 2 or len({*names}) > 1 or "_" in other:
    return formula
  return _INDEXED.sub(r"\1=", formula)


def one_parameter(gold: str, answer: str) -> tuple[str, str]:
  """Drops "k \\in Z" after both formulas, and gives the parameter one name."""
  gold_match, answer_match = _PARAMETER.search(gold), _PARAMETER.search(answer)
  if gold_match is None or answer_match is None:
    return (gold[:gold_match.start()] if gold_match else gold,
            answer[:answer_match.start()] if answer_match else answer)
  name = rf"(?<![a-zA-Z\\]){answer_match[1]}(?![a-zA-Z])"
  return gold[:gold_match.start()], re.sub(name, gold_match[1], answer[:answer_match.start()])


def _letters(formula: str) -> str:
  """Returns the letters of a formula that are variables."""
  return re.sub(r"\\[a-zA-Z]+|[^a-zA-Z]|(?<![a-zA-Z])[a-zA-Z]{3,}", "", unwrap(formula, FONT))


_LAST = re.compile(r"[\d}\s]\s*(?<![a-zA-Z\\])([cdghlmost]|[a-z]{2})\s*$")
_PLAIN = re.compile(r"\s*-?(?:\d[\d.,]*|\\frac\{\d+\}\{\d+\})\s*")
_NAME = re.compile(r"^\s*[A-Za-z](?:_\{?\w+\}?)?\s*=")
_INDEXED = re.compile(r"([a-z])_\{?\d\}?\s*=\s*")
_PARAMETER = re.compile(r"\s*[,;]?\s*(?:\\text\s?\{[^{}]*\}\s*)?\(?\s*([a-z])\s*\\in\s*"
                        r"\\(?:mathbb|mathbf)\s*\{?[ZNRQ]\}?\s*(?:\^?\+)?\)?\s*$")
