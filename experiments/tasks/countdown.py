"""Reach a target from given numbers, each used exactly once, with + - * / and brackets.

  prompt, own tokenizer          3 7 12=48:
  prompt, checkpoint's           a sentence that asks for an expression inside <answer> </answer>
  completion                     (7-3)*12, as the full text or inside the last <answer> </answer>

Problems are solvable by construction: the target is the value of a random expression. All values
inside that expression are positive integers, as in the game. A solution may pass through negative
numbers, but not through fractions.

Source of the rules: TinyZero (github.com/Jiayi-Pan/TinyZero). The checker differs: it walks the
syntax tree with exact fractions, because a character whitelist before `eval` admits 9**9**9.
"""

import ast
import dataclasses
import operator
import re
from collections import Counter
from fractions import Fraction

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.fields import option
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.tasks.reasoning_gym import answer_text
from jaxrl_llm.types import Problem, Reward

ALPHABET = "0123456789+-*/()=: "
EXPRESSION = re.compile(r"[0-9+\-*/() ]+")
LONGEST_EXPRESSION = 200  # characters; bounds the size of numbers and the depth of the tree
TARGET_FACTOR = 10  # the target is at most this many times the largest number
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
SYMBOLS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@dataclasses.dataclass(frozen=True)
class CountdownConfig:
  """Reach a target from given numbers, each used once."""

  numbers: int = option(3, "numbers of a problem", low=2, high=6)
  largest: int = option(20, "largest number", low=2, high=999)


@dataclasses.dataclass(frozen=True)
class CountdownKeys:
  """Config keys of the task `countdown`."""

  countdown: CountdownConfig = CountdownConfig()


def check_expression(text: str, numbers, target: int) -> tuple[bool, str]:
  """Checks that `text` is an expression over exactly `numbers` with the value `target`.

  Allowed are integers, + - * / (also a leading minus), brackets and spaces. Every quotient must be
  an integer.

  Args:
    numbers: the given numbers; each must occur as often as it is given.

  Returns:
    (correct, reason); the reason is "correct", or says in one sentence what is wrong.
  """
  text = text.strip()
  if not text or len(text) > LONGEST_EXPRESSION or not EXPRESSION.fullmatch(text):
    return False, "not an expression of numbers, + - * / and brackets"
  try:
    tree = ast.parse(text, mode="eval").body
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return False, "not a well-formed expression"
  used = []
  try:
    value = _value(tree, used)
  except ArithmeticError as error:
    return False, str(error)
  expected_numbers = sorted(int(n) for n in numbers)
  if Counter(used) != Counter(expected_numbers):
    return False, f"uses {sorted(used)}, not each of {expected_numbers} exactly once"
  if value != target:
    return False, f"has the value {value}, not {target}"
  return True, "correct"


def _value(node: ast.AST, used: list[int]) -> Fraction:
  """Returns the value of a syntax tree and appends its numbers to `used`.

  Raises:
    ArithmeticError: an operation that is not allowed, or a quotient that is no integer.
  """
  if isinstance(node, ast.Constant) and type(node.value) is int:
    used.append(node.value)
    return Fraction(node.value)
  if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    return -_value(node.operand, used)
  if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
    lhs, rhs = _value(node.left, used), _value(node.right, used)
    if isinstance(node.op, ast.Div) and (rhs == 0 or (lhs / rhs).denominator != 1):
      raise ArithmeticError(f"{lhs}/{rhs} is not a whole number")
    return OPERATIONS[type(node.op)](lhs, rhs)
  raise ArithmeticError("uses an operation other than + - * /")


def parse_answer(answer: str) -> tuple[list[int], int]:
  """Returns (numbers, target) of a `Problem.answer` such as "3 7 12=48"."""
  numbers, target = answer.split("=")
  return [int(n) for n in numbers.split()], int(target)


@register.task("countdown", CountdownKeys)
class Countdown(Procedural):
  """Gives `task.countdown.numbers` numbers from 1 to `task.countdown.largest`, and a target."""

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(ALPHABET)

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if the expression is right, else 0.

    There is no credit for the form, because a policy could settle on it.
    """
    answer = answer_text(self.as_graded(problem, completion))
    correct, _ = check_expression(answer, *parse_answer(problem.answer))
    return Reward(float(correct), correct)

  def split_key(self, problem: Problem) -> str:
    """Returns the sorted numbers and the target: their order does not change the question."""
    numbers, target = parse_answer(problem.answer)
    return f"{sorted(numbers)}={target}"

  def more_problems(self) -> str:
    c = self.cfg.countdown
    return (f"more than task.countdown.numbers = {c.numbers}, or larger than "
            f"task.countdown.largest = {c.largest}")

  def longest_prompt(self) -> int:
    if not self.plain_characters:
      return super().longest_prompt()
    c = self.cfg.countdown
    return c.numbers * (len(str(c.largest)) + 1) + len(str(TARGET_FACTOR * c.largest)) + 1

  def longest_demonstration(self) -> int:
    if not self.plain_characters:
      return super().longest_demonstration()
    c = self.cfg.countdown
    return c.numbers * len(str(c.largest)) + (c.numbers - 1) + 2 * (c.numbers - 2) + 1

  def generate(self, rng: np.random.Generator) -> Problem:
    c = self.cfg.countdown
    while True:
      numbers = rng.integers(1, c.largest + 1, c.numbers).tolist()
      expression, target = _combine([(str(n), n) for n in numbers], rng)
      if 0 < target <= TARGET_FACTOR * c.largest:
        break
    answer = f"{' '.join(map(str, numbers))}={target}"
    if self.own_tokenizer:
      return Problem(f"{answer}:", answer, expression, id=answer)
    prompt = (
        f"Numbers: {', '.join(map(str, numbers))}. Target: {target}. Use each number exactly once, "
        "with +, -, *, / and brackets, so that the value is the target. Give the expression inside "
        "<answer> </answer>.")
    return Problem(prompt, answer, f"<answer>{expression}</answer>", id=answer)


def _combine(terms: list[tuple[str, int]], rng: np.random.Generator) -> tuple[str, int]:
  """Joins all terms (expression, value) into one, by one random operation on two of them at a time.

  Inner expressions are in brackets, and every value is a positive integer.
  """
  terms = list(terms)
  while len(terms) > 1:
    (a, x), (b, y) = (terms.pop(int(rng.integers(len(terms)))) for _ in range(2))
    legal = [s for s in SYMBOLS if s in "+*" or (s == "-" and x > y) or (s == "/" and x % y == 0)]
    symbol = legal[int(rng.integers(len(legal)))]
    value = x // y if symbol == "/" else SYMBOLS[symbol](x, y)
    expression = f"{a}{symbol}{b}"
    terms.append((f"({expression})" if terms else expression, value))
  return terms[0]
