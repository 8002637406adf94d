"""Whether two expressions that a checker takes for equal differ after all: exact numbers.

math-verify compares numbers up to a tiny absolute difference, and takes a difference of fractions
with large powers for zero. Here rationals are compared exactly, other numbers to as many digits as
they have, and so are the entries of sets, tuples, intervals and matrices. Own derivation.

The worker loads this file by its path, so it imports nothing of the package.
"""

MOST_DIGITS = 20_000  # of the precision to which irrational numbers are compared
SAMPLE = (3, 7, 2, 11, 5, 13, 17, 19)  # above 7: values of variables at which formulas are compared


def apart(expected: list, said: list) -> bool:
  """Returns whether two readings that were found equal hold exact numbers that differ.

  Args:
    expected, said: what math-verify parsed of each text; the first expression of each counts.
  """
  import sympy
  pair = [next((one for one in readings if isinstance(one, (sympy.Basic, sympy.MatrixBase))), None)
          for readings in (expected, said)]
  if None in pair:
    return False
  try:
    return _apart(*pair)
  except (TypeError, ValueError, AttributeError, ZeroDivisionError, NotImplementedError):
    return False  # sympy has no opinion; the checker's stays


def _apart(ours, theirs) -> bool:
  """Returns whether two expressions differ in a number; unlike shapes are left to the checker."""
  import sympy
  ours, theirs = _right_side(ours, theirs), _right_side(theirs, ours)
  if isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr):
    return _differ(ours, theirs)
  parts = [_parts(one) for one in (ours, theirs)]
  if None in parts or len(parts[0]) != len(parts[1]):
    return False
  return any(map(_apart, *parts))


def _right_side(one, other):
  """Returns the right side of an equation, if the other is none or has the same left side."""
  import sympy
  if isinstance(one, sympy.Eq) and (
      not isinstance(other, sympy.Eq) or one.lhs == other.lhs):
    return one.rhs
  return one


def _parts(one) -> list | None:
  """Returns the entries of a set, tuple, interval or matrix in an order; None for anything else."""
  import sympy
  if isinstance(one, sympy.MatrixBase):
    return list(one)
  if isinstance(one, sympy.Interval):
    return [one.start, one.end]
  if isinstance(one, sympy.Tuple):
    return list(one.args)
  if isinstance(one, (sympy.FiniteSet, sympy.Union)):
    return sorted(one.args, key=_place)
  return None


def _place(part) -> float:
  """Returns where a real number, or the beginning of an interval, lies."""
  import sympy
  number = part.rhs if isinstance(part, sympy.Eq) else getattr(part, "start", part)
  return float(number)


def _differ(ours, theirs) -> bool:
  """Returns whether two formulas without decimals differ, at one value of their variables."""
  import sympy
  if ours.has(sympy.Float) or theirs.has(sympy.Float):
    return False
  if _is_percent(ours) != _is_percent(theirs) or ours.has(sympy.nan) or theirs.has(sympy.nan):
    return False
  if ours.free_symbols or theirs.free_symbols:
    names = sorted(ours.free_symbols | theirs.free_symbols, key=str)
    if len(names) > len(SAMPLE) or any(name.name in ("i", "e", "j") for name in names):
      return False
    values = {name: sympy.Rational(value, 7) for name, value in zip(names, SAMPLE, strict=False)}
    ours, theirs = ours.subs(values), theirs.subs(values)
  ours, theirs = ours.doit(), theirs.doit()
  if ours.is_Rational and theirs.is_Rational:
    return bool(ours != theirs)
  if not (ours.is_finite and theirs.is_finite):
    return False
  return _is_nonzero(ours, theirs)


def _is_nonzero(ours, theirs) -> bool:
  """Returns whether two numbers differ, computed to more digits than their parts can hide."""
  import sympy
  difference = ours - theirs
  if difference.is_Rational:
    return bool(difference != 0)
  most = 60 + 2 * sum(_size(number) for number in difference.atoms(sympy.Rational))
  digits = int(min(most + 2 * sum(map(_size_of_power, difference.atoms(sympy.Pow))), MOST_DIGITS))
  value, scale = difference.evalf(10, maxn=digits), ours.evalf(10)
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


def _is_percent(one) -> bool:
  import sympy
  return bool(one.has(sympy.UnevaluatedExpr))
