"""Reach a target from given numbers, each used exactly once, with + - * / and brackets.

  prompt, own tokenizer          3 7 12=48:
  prompt, checkpoint's           a sentence that asks for an expression inside <answer> </answer>
  completion                     (7-3)*12, as a whole or inside the last <answer> </answer>

Problems are solvable by construction: a random expression is drawn and its value becomes the
target. Numbers along the way are positive and whole, as in the game; a solution may pass through
negative ones, not through fractions.

Source of the rules: TinyZero's task, methods V7.2; the checker is a tree walker over exact
fractions, since a character whitelist before `eval` still admits 9**9**9.
"""

import ast
import dataclasses
import operator
import re
from collections import Counter
from fractions import Fraction

import numpy as np

from jaxrl_llm.fields import option
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

ALPHABET = "0123456789+-*/()=: "
EXPRESSION = re.compile(r"[0-9+\-*/() ]+")
LONGEST_EXPRESSION = 200  # characters; bounds the size of numbers and the depth of the tree
TARGET_FACTOR = 10  # the target is at most this many times the largest number
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv
}
SYMBOLS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def check_expression(text: str, numbers, target: int) -> tuple[bool, str]:
  """Whether `text` is an expression over exactly `numbers` with the value `target`, and why not.

  Allowed are whole numbers, + - * / (also a leading minus), brackets and spaces. Every quotient
  must be whole.

  Args:
    numbers: the given numbers; each must occur as often as it is given.

  Returns:
    (correct, reason); the reason is "correct" or one sentence.
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
  if Counter(used) != Counter(int(n) for n in numbers):
    return False, f"uses {sorted(used)}, not each of {sorted(int(n) for n in numbers)} exactly once"
  return (True, "correct") if value == target else (False, f"has the value {value}, not {target}")


def _value(node: ast.AST, used: list[int]) -> Fraction:
  """Value of a tree; numbers met on the way are appended to `used`.

  Raises:
    ArithmeticError: an operation that is not allowed, a division by zero, or a quotient that is not
    whole.
  """
  if isinstance(node, ast.Constant) and type(node.value) is int:
    used.append(node.value)
    return Fraction(node.value)
  if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    return -_value(node.operand, used)
  if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
    left, right = _value(node.left, used), _value(node.right, used)
    if isinstance(node.op, ast.Div) and (right == 0 or (left / right).denominator != 1):
      raise ArithmeticError(f"{left}/{right} is not a whole number")
    return OPERATIONS[type(node.op)](left, right)
  raise ArithmeticError("uses an operation other than + - * /")


def answer_text(completion: str) -> str:
  """What is inside the last complete <answer> </answer>, or the whole completion where there is
  none.
  """
  tagged = re.findall(r"<answer>((?:(?!<answer>).)*?)</answer>", completion, re.DOTALL)
  return (tagged[-1] if tagged else completion).strip()


def parse_answer(answer: str) -> tuple[list[int], int]:
  """(numbers, target) of a `Problem.answer` such as "3 7 12=24"."""
  numbers, target = answer.split("=")
  return [int(n) for n in numbers.split()], int(target)


@dataclasses.dataclass(frozen=True)
class CountdownConfig:
  """Reach a target from given numbers, each used once."""

  numbers: int = option(3, "numbers of a problem", low=2, high=6)
  largest: int = option(20, "largest number", low=2, high=999)


@dataclasses.dataclass(frozen=True)
class CountdownKeys:
  """What only `countdown` reads."""

  countdown: CountdownConfig = CountdownConfig()


class Countdown(Procedural):
  """`task.countdown.numbers` numbers up to `task.countdown.largest`."""

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(ALPHABET)

  def reward(self, problem: Problem, completion: str) -> Reward:
    """1 if the expression is right, else 0: no credit for form, on which a policy could settle."""
    correct, _ = check_expression(answer_text(completion), *parse_answer(problem.answer))
    return Reward(float(correct), correct)

  def split_key(self, problem: Problem) -> str:
    """The same numbers in another order are the same question."""
    numbers, target = parse_answer(problem.answer)
    return f"{sorted(numbers)}={target}"

  def scarce(self) -> str:
    c = self.cfg.countdown
    return f"more than task.countdown.numbers = {c.numbers}, or larger than task.countdown.largest = {c.largest}"

  def longest_prompt(self) -> int:
    if not self._by_characters:
      return super().longest_prompt()
    c = self.cfg.countdown
    return c.numbers * (len(str(c.largest)) + 1) + len(str(TARGET_FACTOR * c.largest)) + 1

  def longest_demonstration(self) -> int:
    """Tokens, end of sequence included."""
    if not self._by_characters:
      return super().longest_demonstration()
    c = self.cfg.countdown
    return c.numbers * len(str(c.largest)) + (c.numbers - 1) + 2 * (c.numbers - 2) + 1

  @property
  def _by_characters(self) -> bool:
    return self.own_tokenizer and self.cfg.prompt.style == "plain"

  def draw_one(self, rng: np.random.Generator) -> Problem:
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
        "with "
        "+, -, *, / and brackets, so that the value is the target. Give the expression inside "
        "<answer> </answer>.")
    return Problem(prompt, answer, f"<answer>{expression}</answer>", id=answer)


def _combine(parts: list[tuple[str, int]], rng: np.random.Generator) -> tuple[str, int]:
  """One expression out of all parts, pair by random pair; inner ones in brackets, every value
  positive and whole.
  """
  parts = list(parts)
  while len(parts) > 1:
    (a, x), (b, y) = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
    legal = [s for s in SYMBOLS if s in "+*" or (s == "-" and x > y) or (s == "/" and x % y == 0)]
    symbol = legal[int(rng.integers(len(legal)))]
    value = x // y if symbol == "/" else SYMBOLS[symbol](x, y)
    expression = f"{a}{symbol}{b}"
    parts.append((f"({expression})" if parts else expression, value))
  return parts[0]
