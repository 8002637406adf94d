"""Compares expressions with math-verify, inside a process of the sandbox (`verifier_pool`).

It has a process of its own because sympy can run for hours inside one C call, which only the kernel
can end. It is run by its path, so that neither this package nor JAX is imported.
"""

import functools
import importlib.util
import logging
import math
import pathlib

MOST_DIGITS = 20_000  # of a number that the checker may compute
MOST_TERMS = 10_000  # of a sum or product with numbers as bounds
MOST_EXPANDED = 200  # exponent of a sum with a variable in it
# A first use of parser and simplifier takes up to a second; processes inherit what it learned.
WARMING = ((r"\frac{1}{2}+\sqrt{x}", r"\frac{1+2\sqrt{x}}{2}"), (r"(1,2)\cup[3,\infty)", r"x^2+2x"),
           (r"\sin(2x)+e^{x}", r"2\sin x\cos x + \ln 3"), (r"\{1,2\}", "y=2x+1"),
           (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"))


class TooCostlyError(ValueError):
  """Evaluating an expression would take more time or memory than any answer deserves."""


def warm() -> None:
  """Compares some formulas, so that processes that are forked later have learned how."""
  logging.disable(logging.CRITICAL)
  for gold, prediction in WARMING:
    compare(gold, prediction)


def compare(gold: str, prediction: str, decimals: int | None = None,
            tolerance: float | None = None) -> bool | str:
  """Returns whether two formulas are equal, or "costly"; see `comparisons.Question`."""
  import math_verify
  try:
    gold_value, answer = parsed(math_verify, gold), parsed(math_verify, prediction)
    rounding = 15 if decimals is None else decimals
    close = tolerance is not None and near(gold_value, answer, tolerance)
    return close or equal(math_verify, gold_value, answer, rounding)
  except (TooCostlyError, MemoryError):
    return "costly"
  except RecursionError:  # brackets within brackets
    return False


def equal(math_verify, expected: list, answer: list, rounding: int) -> bool:
  """Returns whether one of the parsed readings equals the other's; `i` may be the imaginary unit.
  """
  def verify(gold: list, prediction: list) -> bool:
    return bool(math_verify.verify(gold, prediction, float_rounding=rounding, timeout_seconds=None,
                                   allow_set_relation_comp=True, raise_on_error=True))

  if verify(expected, answer):
    return not sibling_module("exactness").differ_exactly(expected, answer)
  complex_gold, complex_answer = imaginary(expected), imaginary(answer)
  changed = (complex_gold, complex_answer) != (expected, answer)
  return changed and verify(complex_gold, complex_answer)


def near(expected: list, answer: list, tolerance: float) -> bool:
  """Returns whether two numbers, or two lists of as many, are equal up to a tolerance."""
  import sympy
  values = []
  for readings in (expected, answer):
    first = next((numbers for numbers in readings if isinstance(numbers, sympy.Basic)), None)
    parts = first.args if type(first).__name__ in ("FiniteSet", "Tuple") else [first]
    if not all(isinstance(part, sympy.Expr) and part.is_number for part in parts):
      return False
    values.append([complex(part.evalf(20)) for part in parts])
  if any(value.imag for value in values[0] + values[1]) or len(values[0]) != len(values[1]):
    return False
  pairs = zip(*(sorted(value.real for value in numbers) for numbers in values), strict=True)
  return all(abs(gold - answer) <= tolerance * (1 + 1e-9) for gold, answer in pairs)


@functools.cache
def sibling_module(name: str):
  """Returns the module in the file next to this one; the package is not imported."""
  path = pathlib.Path(__file__).with_name(f"{name}.py")
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def imaginary(readings: list) -> list:
  """Returns the parsed readings with the variable `i` as the imaginary unit."""
  import sympy

  def replaced(reading):
    if not isinstance(reading, sympy.Expr):
      return reading
    return reading.subs({x: sympy.I for x in reading.free_symbols if x.name == "i"})

  return [replaced(reading) for reading in readings]


@functools.lru_cache(1024)  # the rows of a group share their gold, and parsing takes most time
def parsed(math_verify, text: str) -> list:
  """Returns what math-verify finds in a box with this content.

  Raises:
    TooCostlyError: evaluating it would take without end.
  """
  config = (math_verify.LatexExtractionConfig(boxed_match_priority=0),
            math_verify.ExprExtractionConfig())
  readings = math_verify.parse(f"\\boxed{{{text}}}", extraction_config=config, parsing_timeout=None,
                               raise_on_error=True)
  for reading in readings:
    check_cost(reading)
  return readings


def check_cost(expression) -> None:
  """Refuses numbers of too many digits, long sums, and high powers of sums.

  math-verify parses without evaluating, so the tree of 9^{9^{9^9}} is small and can be read.

  Raises:
    TooCostlyError: naming the operation.
  """
  import sympy
  if isinstance(expression, sympy.Basic):
    digits(expression)
  elif isinstance(expression, sympy.MatrixBase):
    for entry in expression:
      digits(entry)


def digits(expression) -> float:
  """Returns a bound on the decimal digits before the point of an expression; a variable has one.

  Raises:
    TooCostlyError: the bound, or the work below it, is too large.
  """
  import sympy
  if isinstance(expression, sympy.Number):
    return _digits_of_number(expression)
  inner = [digits(part) for part in expression.args]
  bound = max(inner, default=1.0)
  if isinstance(expression, sympy.Add):
    bound += math.log10(len(inner))
  elif isinstance(expression, sympy.Mul):
    bound = sum(max(0.0, factor) for factor in inner)
  elif isinstance(expression, sympy.Pow):
    bound = _digits_of_power(expression, inner)
  elif isinstance(expression, (sympy.factorial, sympy.factorial2, sympy.gamma)):
    n = _at_most(inner[0], MOST_DIGITS, "factorial")
    bound = n * math.log10(n + 1)
  elif isinstance(expression, (sympy.binomial, sympy.RisingFactorial, sympy.FallingFactorial)):
    bound = _at_most(inner[0], MOST_DIGITS, "binomial")
  elif isinstance(expression, (sympy.Sum, sympy.Product)):
    bound = _digits_of_sum(expression, inner[0])
  elif isinstance(expression, (sympy.fibonacci, sympy.lucas, sympy.bernoulli, sympy.harmonic)):
    bound = _at_most(inner[0], MOST_DIGITS, "sequence")
  if bound > MOST_DIGITS:
    raise TooCostlyError(f"{type(expression).__name__} of {bound:.3g} digits")
  return bound


def _digits_of_number(number) -> float:
  if not number.is_finite:
    return 1.0
  if number.is_Rational:
    return max(number.p.bit_length(), number.q.bit_length()) * math.log10(2)
  return math.log10(abs(float(number)) + 1)


def _digits_of_power(power, inner: list[float]) -> float:
  if power.base.free_symbols and power.base.is_Add and inner[1] > math.log10(MOST_EXPANDED):
    if power.exp.is_number:
      raise TooCostlyError("a high power of a sum")
  if not power.exp.is_number or power.base.is_Symbol:
    return max(inner)
  return _at_most(inner[1], 100 * MOST_DIGITS, "power") * max(0.31, inner[0])


def _digits_of_sum(expression, inner: float) -> float:
  terms = 1.0
  for _, low, high in expression.limits:
    if low.is_number and high.is_number:
      terms *= _at_most(max(digits(low), digits(high)), MOST_TERMS, "sum")
  return inner + math.log10(terms + 1) if expression.func.__name__ == "Sum" else inner * terms


def _at_most(exponent: float, bound: float, name: str) -> float:
  """Returns 10^exponent.

  Raises:
    TooCostlyError: it is above the bound.
  """
  if exponent > math.log10(bound) + 0.31:
    raise TooCostlyError(name)
  return 10**exponent
