"""Exact arithmetic inside the trainer's process.

An expression is parsed and each node of its syntax tree is looked up in a table, so it can neither
call, import, allocate nor loop. This makes it the safe default among the tools.
"""

import ast
import decimal
import logging
import operator
import re
import time
from collections.abc import Callable
from fractions import Fraction

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.sandbox.results import Tool, ToolResult

_BINARY: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type, Callable] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def _least(*numbers: Fraction) -> Fraction:
  return min(numbers)  # min(7) of Python raises


def _greatest(*numbers: Fraction) -> Fraction:
  return max(numbers)


# name: (function, smallest and largest number of arguments)
_FUNCTIONS: dict[str, tuple[Callable, int, int]] = {
    "abs": (abs, 1, 1), "min": (_least, 1, 64), "max": (_greatest, 1, 64), "round": (round, 1, 2)
}
_LOG = logging.getLogger(__name__)
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
EXPONENT_DIGITS = 9  # of a literal; one with more is out of any bound
PLACES = 20  # decimal places up to which a terminating decimal is written in full
DIGITS = 12  # significant digits of all other numbers that are no integers


class RefusedError(Exception):
  """Refuses an expression outside of the language or its bounds; the message is the output."""


class Calculator(Tool):
  """A tool that evaluates expressions over exact rational numbers.

  The language has + - * / // % **, parentheses, abs, min, max and round. Decimals are exact
  (0.1 + 0.2 is 0.3) and so is division. `//`, `%` and round follow Python's rules. Exponents are
  integers.

  An integer result is written as an integer, and a decimal that ends within 20 places in full. Any
  other result is rounded half to even to 12 significant digits, or more if the integer part is
  longer.

  Args:
    max_chars: length of an expression.
    max_bits: size of the numerator and of the denominator of every intermediate result.
    max_exponent: largest magnitude of an exponent.

  Raises:
    ConfigError: a bound out of range.
  """

  def __init__(self, *, max_chars: int = 1000, max_bits: int = 4096, max_exponent: int = 1024):
    # 13,000 bits are fewer than the 4,300 digits that Python writes; parsing a text of more than
    # 4,000 characters could fill the stack.
    for key, value, high in (("max_chars", max_chars, 4000), ("max_bits", max_bits, 13000),
                             ("max_exponent", max_exponent, 1 << 20)):
      if not isinstance(value, int) or not 1 <= value <= high:
        raise ConfigError(
            f"Calculator: {key} = {value!r}: allowed is a whole number in [1, {high}].")
    self.max_chars, self.max_bits, self.max_exponent = max_chars, max_bits, max_exponent

  def run(self, expression: str) -> ToolResult:
    """Returns the value, or status `error` and a line that says what is wrong; never raises.

    A defect of the calculator would give the status `unavailable` and a line in the log.
    """
    begin = time.perf_counter()
    try:
      status, output = "ok", written(self.value(expression))
    except RefusedError as error:
      status, output = "error", f"error: {error}"
    except Exception as error:  # else it would end the run, as no text may
      _LOG.warning("calculator: %r: %s: %s", expression, type(error).__name__, error)
      status, output = "unavailable", f"{type(error).__name__}: {error}"
    return ToolResult(status, output, time.perf_counter() - begin)

  def value(self, expression: str) -> Fraction:
    """Returns the exact value.

    Raises:
      RefusedError: there is none; the message says why.
    """
    text = expression.strip()
    if len(text) > self.max_chars:
      raise RefusedError(f"the expression is longer than {self.max_chars} characters")
    try:
      lines = _LINE_ENDS.split(text.encode())
      return self._node(ast.parse(text, mode="eval").body, lines)
    except (SyntaxError, ValueError):
      raise RefusedError("not an arithmetic expression") from None
    except (RecursionError, MemoryError):
      raise RefusedError("the expression is nested too deeply") from None
    except ZeroDivisionError:
      raise RefusedError("division by zero") from None

  def _node(self, node: ast.AST, lines: list[bytes]) -> Fraction:
    match node:
      case ast.Constant():
        return self._bounded(self._number(node, lines))
      case ast.UnaryOp() if type(node.op) in _UNARY:
        return _UNARY[type(node.op)](self._node(node.operand, lines))
      case ast.BinOp() if type(node.op) in _BINARY:
        lhs, rhs = self._node(node.left, lines), self._node(node.right, lines)
        if isinstance(node.op, ast.Pow):
          rhs = self._exponent(lhs, rhs)
        return self._bounded(Fraction(_BINARY[type(node.op)](lhs, rhs)))
      case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
        function, low, high = _FUNCTIONS[name]
        if not low <= len(node.args) <= high:
          numbers = f"{low} to {high} numbers" if low < high else f"{low} number"
          raise RefusedError(f"{name} takes {numbers}")
        values: list = [self._node(arg, lines) for arg in node.args]
        if name == "round" and len(values) == 2:
          if values[1].denominator != 1 or abs(values[1]) > 100:
            raise RefusedError("round takes a whole number of places from -100 to 100")
          values[1] = int(values[1])
        return self._bounded(Fraction(function(*values)))
    raise RefusedError(
        "only numbers, + - * / // % **, parentheses, abs, min, max and round are allowed")

  def _number(self, node: ast.Constant, lines: list[bytes]) -> Fraction:
    if type(node.value) is int:
      return Fraction(node.value)
    if type(node.value) is not float:
      raise RefusedError(
          "only numbers, + - * / // % **, parentheses, abs, min, max and round are allowed")
    # The parsed float is rounded, so the number is read from the text. A literal is on one line.
    text = lines[node.lineno - 1][node.col_offset:node.end_col_offset].decode()
    digits, _, exponent = text.replace("_", "").lower().partition("e")
    number = decimal.Decimal(digits)
    if not number:
      return Fraction(0)
    too_long = len(exponent.lstrip("+-0")) > EXPONENT_DIGITS
    if too_long or abs(number.adjusted() + int(exponent or 0)) > self.max_bits:
      raise RefusedError(f"a number has more than {self.max_bits} bits")
    return Fraction(number) * Fraction(10)**int(exponent or 0)

  def _exponent(self, base: Fraction, exponent: Fraction) -> int:
    if exponent.denominator != 1:
      raise RefusedError("an exponent must be a whole number")
    if abs(exponent) > self.max_exponent:
      raise RefusedError(f"an exponent is larger than {self.max_exponent}")
    if abs(exponent) * (_bits(base) - 1) > self.max_bits:
      raise RefusedError(f"a number has more than {self.max_bits} bits")
    return int(exponent)

  def _bounded(self, number: Fraction) -> Fraction:
    if _bits(number) > self.max_bits:
      raise RefusedError(f"a number has more than {self.max_bits} bits")
    return number


def _bits(number: Fraction) -> int:
  return max(number.numerator.bit_length(), number.denominator.bit_length())


def written(number: Fraction) -> str:
  """Returns a rational number in decimal digits; see `Calculator` for the rounding."""
  if number.denominator == 1:
    return _digits(number.numerator)
  cofactor, twos, fives = number.denominator, 0, 0
  while cofactor % 2 == 0:
    cofactor, twos = cofactor // 2, twos + 1
  while cofactor % 5 == 0:
    cofactor, fives = cofactor // 5, fives + 1
  places = max(twos, fives)
  integer_digits = len(_digits(abs(number.numerator) // number.denominator))
  in_full = cofactor == 1 and places <= PLACES
  precision = integer_digits + places if in_full else max(DIGITS, integer_digits + 6)
  context = decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_EVEN)
  digits = context.divide(decimal.Decimal(number.numerator), decimal.Decimal(number.denominator))
  return f"{digits:f}" if in_full else str(digits)


def _digits(number: int) -> str:
  return f"{decimal.Decimal(number):f}"  # str refuses long numbers, at a length that users may set
