r"""Variables at the end of a formula, which the checker would take for units and drop.

math-verify reads 3 in "3t" and b^2+2 in "b^2+2ab". Braces keep the letters: "3{t}". Own derivation.
"""

import re

from jaxrl_llm.grading import units
from jaxrl_llm.grading.extraction import unwrap
from jaxrl_llm.grading.latex import FONT


def kept_variables(formula: str, other: str) -> str:
  r"""Returns a formula with its last one or two letters in braces, unless they are a unit.

  They are a unit if it is known and stands apart, as in "2\sqrt{3} m", and if neither formula has
  a variable.

  Args:
    other: the formula to compare with.
  """
  match = _LAST.search(formula)
  if match is None:
    return formula
  letters, start = match[1], match.start(1)
  apart = len(letters) > 1 or formula[start - 1].isspace()
  before = {*_letters(_NAME.sub("", formula[:start])), *_letters(_NAME.sub("", other))}
  is_product = bool(before) if len(letters) == 1 else {*letters} <= before
  if apart and not is_product and units.parse(letters) is not None:
    return formula
  return f"{formula[:start]}{{{letters}}}"


def _letters(formula: str) -> str:
  """Returns the letters of a formula that are variables."""
  return re.sub(r"\\[a-zA-Z]+|[^a-zA-Z]|(?<![a-zA-Z])[a-zA-Z]{3,}", "", unwrap(formula, FONT))


_LAST = re.compile(r"[\d}\s]\s*(?<![a-zA-Z\\])([cdghlmost]|[a-z]{2})\s*$")
_NAME = re.compile(r"^\s*[A-Za-z](?:_\{?\w+\}?)?\s*=")
