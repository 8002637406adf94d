"""Exact comparison of two expressions that a checker takes for equal: they may differ after all.

math-verify compares numbers up to a tiny absolute difference, and takes a difference of fractions
with large powers for zero. Here rationals are compared exactly, other numbers to as many digits as
they have, and so are the entries of sets, tuples, intervals and matrices. Own derivation.

The worker loads this file by its path, so it imports nothing of the package.
"""

MOST_DIGITS = 20_000  # of the precision to which irrational numbers are compared
SAMPLE = (3, 7, 2, 11, 5, 13, 17, 19)  # above 7: values of variables at which formulas are compared


def differ_exactly(expected: list, answer: list) -> bool:
  """Returns whether two readings that were found equal hold exact numbers that differ.

  Args:
    expected, answer: what math-verify parsed of each text; the first expression of each counts.
  """
  import sympy
  pair = [next((expression for expression in readings
                if isinstance(expression, (sympy.Basic, sympy.MatrixBase))), None)
          for readings in (expected, answer)]
  if None in pair:
    return False
  try:
    return _differ_exactly(*pair)
  except (TypeError, ValueError, AttributeError, ZeroDivisionError, NotImplementedError):
    return False  # sympy has no opinion; the checker's stays


def _differ_exactly(gold, answer) -> bool:
  """Returns whether two expressions differ in a number; unlike shapes are left to the checker."""
  import sympy
  gold, answer = _right_side(gold, answer), _right_side(answer, gold)
  if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
    return _differ(gold, answer)
  parts = [_parts(expression) for expression in (gold, answer)]
  if None in parts or len(parts[0]) != len(parts[1]):
    return False
  return any(map(_differ_exactly, *parts))


def _right_side(expression, counterpart):
  """Returns the rhs of an equation, if the counterpart is no equation or has the same lhs."""
  import sympy
  if isinstance(expression, sympy.Eq) and (
      not isinstance(counterpart, sympy.Eq) or expression.lhs == counterpart.lhs):
    return expression.rhs
  return expression


def _parts(expression) -> list | None:
  """Returns the entries of a set, tuple, interval or matrix in an order; None for anything else."""
  import sympy
  if isinstance(expression, sympy.MatrixBase):
    return list(expression)
  if isinstance(expression, sympy.Interval):
    return [expression.start, expression.end]
  if isinstance(expression, sympy.Tuple):
    return list(expression.args)
  if isinstance(expression, (sympy.FiniteSet, sympy.Union)):
    return sorted(expression.args, key=_place)
  return None


def _place(part) -> float:
  """Returns where a real number, or the beginning of an interval, lies."""
  import sympy
  number = part.rhs if isinstance(part, sympy.Eq) else getattr(part, "start", part)
  return float(number)


def _differ(gold, answer) -> bool:
  """Returns whether two formulas without decimals differ, at one value of their variables."""
  import sympy
  if gold.has(sympy.Float) or answer.has(sympy.Float):
    return False
  if _is_percent(gold) != _is_percent(answer) or gold.has(sympy.nan) or answer.has(sympy.nan):
    return False
  if gold.free_symbols or answer.free_symbols:
    names = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if len(names) > len(SAMPLE) or any(name.name in ("i", "e", "j") for name in names):
      return False
    values = {name: sympy.Rational(value, 7) for name, value in zip(names, SAMPLE, strict=False)}
    gold, answer = gold.subs(values), answer.subs(values)
  gold, answer = gold.doit(), answer.doit()
  if gold.is_Rational and answer.is_Rational:
    return bool(gold != answer)
  if not (gold.is_finite and answer.is_finite):
    return False
  return _is_nonzero(gold, answer)


def _is_nonzero(gold, answer) -> bool:
  """Returns whether two numbers differ, computed to more digits than their parts can hide."""
  import sympy
  difference = gold - answer
  if difference.is_Rational:
    return bool(difference != 0)
  digits_needed = 60 + 2 * sum(_size(number) for number in difference.atoms(sympy.Rational))
  digits = int(min(digits_needed + 2 * sum(map(_size_of_power, difference.atoms(sympy.Pow))),
                   MOST_DIGITS))
  value, scale = difference.evalf(10, maxn=digits), gold.evalf(10)
  if not (value.is_number and scale.is_number):
    return False
  return bool(abs(value).evalf(5) > sympy.Rational(1, 10)**(digits // 2) * abs(scale).evalf(5))


def _size(number) -> float:
  return 0.302 * max(number.p.bit_length(), number.q.bit_length())


def _size_of_power(power) -> float:
  """Returns the digits of 2^{100}; the checker parses without computing it."""
  base, exponent = power.args
  if not (base.is_Rational and exponent.is_Rational):
    return 0.0
  return float(min(abs(exponent), MOST_DIGITS)) * _size(base)


def _is_percent(expression) -> bool:
  import sympy
  return bool(expression.has(sympy.UnevaluatedExpr))
