"""The calculator: exact values, fixed error texts, and bounds that hold."""

import random
import time
from fractions import Fraction

import pytest

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.rollouts.tools import Calculator, ToolResult

VALUES = {
    "1+1": "2",
    "2+3*4": "14",
    "(2+3)*4": "20",
    "-3**2": "-9",
    "2**-2": "0.25",
    "7/2": "3.5",
    "6/3": "2",
    "0.1+0.2": "0.3",
    "-7//2": "-4",
    "-7%3": "2",
    "7.5%2": "1.5",
    "1/3": "0.333333333333",
    "2/3": "0.666666666667",
    "10**20": "1" + "0" * 20,
    "1e3": "1000",
    "1.50": "1.5",
    "abs(-2)+max(1, 5, 3)-min(4, 2)": "5",
    "round(2.5)": "2",
    "round(2.345, 2)": "2.34",
    "round(1234, -2)": "1200",
    "12345678901234567/3": "4115226300411522.333333",
    "1/3**100": "1.94032521748E-48",
    "  2 *\t3 ": "6",
    "+4": "4",
    "1_000*2": "2000",
    "0**0": "1",
    "5e-3": "0.005",
    "1/2**20": "0.00000095367431640625",
}
ONLY = "error: only numbers, + - * / // % **, parentheses, abs, min, max and round are allowed"
SYNTAX, BITS = "error: not an arithmetic expression", "error: a number has more than 4096 bits"
FOREIGN = ("x", "__import__('os')", "'a'*9", "1j", "True", "2^3", "~1", "1<2", "abs(*[1])",
           "[1][0]", "abs.__class__", "max(1, key=abs)", "(lambda: 1)()", "1 if 1 else 2", "f'{1}'",
           "(y:=1)", "[i for i in (1,)]", "...", "b'1'")
ERRORS = {
    "1/0": "error: division by zero",
    "0**-1": "error: division by zero",
    "5%0": "error: division by zero",
    "2**0.5": "error: an exponent must be a whole number",
    "2**2000": "error: an exponent is larger than 1024",
    "9**9**9": "error: an exponent is larger than 1024",
    "(10**300)**1000": BITS,
    "1e999999999": BITS,
    "1e-999999999": BITS,
    "2**1024*2**1024*2**1024*2**1024": BITS,
    "": SYNTAX,
    "1+": SYNTAX,
    "2 3": SYNTAX,
    "1\x00": SYNTAX,
    "\ud800": SYNTAX,
    "abs()": "error: abs takes 1 number",
    "round(1, 2, 3)": "error: round takes 1 to 2 numbers",
    "round(1, 0.5)": "error: round takes a whole number of places from -100 to 100",
    "1" * 1001: "error: the expression is longer than 1000 characters",
} | dict.fromkeys(FOREIGN, ONLY)
LONG = ("(" * 300 + "1" + ")" * 300, "-" * 999 + "1", "1" + "+1" * 499, "2**" * 300 + "1",
        "9" * 999)


@pytest.mark.parametrize("text", list(VALUES))
def test_values(text):
  assert Calculator().run(text) == ToolResult("ok", VALUES[text])


@pytest.mark.parametrize("text", list(ERRORS))
def test_errors(text):
  assert Calculator().run(text) == ToolResult("error", ERRORS[text])


@pytest.mark.parametrize("text", LONG)
def test_long_expressions_end_quickly_and_never_raise(text):
  started = time.perf_counter()
  assert Calculator().run(text).status in ("ok", "error")
  assert time.perf_counter() - started < 2


def test_agrees_with_exact_arithmetic_and_rejects_floats():
  """Compares random expressions with Fractions; float arithmetic fails the same comparison."""
  rng, wrong = random.Random(0), 0
  for _ in range(200):
    a, b, c = (rng.randint(1, 10**9) for _ in range(3))
    text, exact = f"({a} - {b}) * {c} / 7 + {a} % {b}", Fraction(a - b) * c / 7 + a % b
    assert Calculator().value(text) == exact
    wrong += eval(text) != exact
  assert wrong > 100


def test_many_keep_their_order_and_bounds_are_checked():
  with Calculator() as calculator:
    assert [r.output for r in calculator.run_many(["1", "x", "3"])] == ["1", ONLY, "3"]
  assert Calculator(max_exponent=3).run("2**4").status == "error"
  with pytest.raises(ConfigError, match="max_bits = 0"):
    Calculator(max_bits=0)
