"""Exact comparison of two numbers that math-verify takes for equal: they may differ after all.

It compares up to a tiny absolute difference, and takes a difference of fractions with large powers
for zero. The worker loads this file by its path, so it imports nothing of the package.
"""

MOST_DIGITS = 20_000  # of the precision to which irrational numbers are compared


def differ_exactly(expected: list, answer: list) -> bool:
  """Returns whether two readings that were found equal are exact numbers that differ.

  Args:
    expected, answer: what math-verify parsed of each text; the first expression of each counts.
  """
  import sympy
  pair = [next((reading for reading in readings if isinstance(reading, sympy.Basic)), None)
          for readings in (expected, answer)]
  if any(not isinstance(part, sympy.Expr) or part.free_symbols
         or part.has(sympy.Float, sympy.nan, sympy.UnevaluatedExpr) for part in pair):
    return False
  try:
    return _differ(*(part.doit() for part in pair))
  except (TypeError, ValueError, AttributeError, ZeroDivisionError, NotImplementedError):
    return False  # sympy has no opinion; the checker's stays


def _differ(gold, answer) -> bool:
  """Returns whether two numbers differ, computed to more digits than their parts can hide."""
  import sympy
  difference = gold - answer
  if difference.is_Rational or not (gold.is_finite and answer.is_finite):
    return bool(difference.is_Rational and difference != 0)
  size = sum(map(_digits, difference.atoms(sympy.Rational, sympy.Pow)))
  digits = int(min(MOST_DIGITS, 60 + 2 * size))
  value, scale = difference.evalf(10, maxn=digits), gold.evalf(10)
  bound = sympy.Rational(1, 10)**(digits // 2) * abs(scale).evalf(5)
  return bool(value.is_number and scale.is_number and abs(value).evalf(5) > bound)


def _digits(part) -> float:
  """Returns the digits of a rational number, or of 2^{100}, which is parsed unevaluated."""
  if part.is_Rational:
    return 0.302 * max(part.p.bit_length(), part.q.bit_length())
  base, exponent = part.args
  rational = base.is_Rational and exponent.is_Rational
  return float(min(abs(exponent), MOST_DIGITS)) * _digits(base) if rational else 0.0
