"""Short questions of several kinds whose answers are whole numbers: a task for small language
models.

configs/smollm2_135m.py trains on them. A completion is right if it is the number alone; the reward
component `lenient`, which pays nothing, also takes the last number of a longer text.
"""

import dataclasses
import re

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.fields import ConfigError, option
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

NUMBER = re.compile(r"-?\d+")


def _number(rng, low: int, high: int) -> int:
  return int(rng.integers(low, high + 1))


def total(rng):
  a, b = _number(rng, 1, 20), _number(rng, 1, 20)
  return f"What is {a} + {b}?", a + b


def plus_digit(rng):
  a, b = _number(rng, 1, 60), _number(rng, 1, 9)
  return f"What is {a} + {b}?", a + b


def sum_two_digits(rng):
  a, b = _number(rng, 10, 99), _number(rng, 1, 99)
  return f"What is {a} + {b}?", a + b


def difference(rng):
  a, b = _number(rng, 1, 20), _number(rng, 1, 20)
  return f"What is {a + b} - {a}?", b


def product(rng):
  a, b = _number(rng, 2, 12), _number(rng, 2, 12)
  return f"What is {a} times {b}?", a * b


def double(rng):
  a = _number(rng, 6, 99)
  return f"What is the double of {a}?", 2 * a


def half(rng):
  a = _number(rng, 3, 50)
  return f"What is half of {2 * a}?", a


def remainder(rng):
  a, b = _number(rng, 5, 60), _number(rng, 3, 9)
  return f"What is the remainder of {a} divided by {b}?", a % b


def largest(rng):
  numbers = rng.choice(np.arange(1, 100), 3, replace=False).tolist()
  return f"Which is the largest: {', '.join(map(str, numbers))}?", max(numbers)


def smallest(rng):
  numbers = rng.choice(np.arange(1, 100), 3, replace=False).tolist()
  return f"Which is the smallest: {', '.join(map(str, numbers))}?", min(numbers)


def following(rng):
  start, step = _number(rng, 1, 30), _number(rng, 2, 9)
  shown = ", ".join(str(start + i * step) for i in range(4))
  return f"Which number comes next: {shown}?", start + 4 * step


def after(rng):
  a = _number(rng, 10, 998)
  return f"Which number comes right after {a}?", a + 1


def before(rng):
  a = _number(rng, 11, 999)
  return f"Which number comes right before {a}?", a - 1


def ten_more(rng):
  a = _number(rng, 11, 980)
  return f"Which number is 10 more than {a}?", a + 10


def digits_reversed(rng):
  a = _number(rng, 1, 9) + 10 * _number(rng, 1, 9) + 100 * _number(rng, 1, 9)
  return f"Write the digits of {a} from right to left.", int(str(a)[::-1])


def digit_sum(rng):
  a = _number(rng, 11, 99)
  return f"What is the sum of the digits of {a}?", sum(map(int, str(a)))


def last_digit(rng):
  a = _number(rng, 100, 9999)
  return f"What is the last digit of {a}?", a % 10


def first_digit(rng):
  a = _number(rng, 100, 9999)
  return f"What is the first digit of {a}?", int(str(a)[0])


def position(rng):
  letters = rng.choice(list("abcdefghij"), 5, replace=False).tolist()
  i = _number(rng, 0, 4)
  return f"At which place is the letter {letters[i]} in {' '.join(letters)}?", i + 1


def price(rng):
  count, each = _number(rng, 2, 12), _number(rng, 2, 12)
  return f"A pen costs {each} dollars. How many dollars do {count} pens cost?", count * each


def left(rng):
  b = _number(rng, 1, 20)
  a = b + _number(rng, 1, 20)
  return f"Tom has {a} apples and eats {b} of them. How many apples are left?", a - b


KINDS = {make.__name__: make for make in (
    total, plus_digit, sum_two_digits, difference, product, double, half, remainder, largest,
    smallest, following, after, before, ten_more, digits_reversed, digit_sum, last_digit,
    first_digit, position, price, left)}


@dataclasses.dataclass(frozen=True)
class QuestionsKeys:
  """Config keys of the task `questions`."""

  kinds: tuple = option(("total", "product"), "kinds of questions, equally often, separated by "
                        "commas")


@register.task("questions", QuestionsKeys)
class Questions(Procedural):
  """Asks questions of `task.kinds`; a problem's id begins with its kind."""

  def __post_init__(self):
    unknown = [kind for kind in self.cfg.kinds if kind not in KINDS]
    if unknown or not self.cfg.kinds:
      raise ConfigError(f"task.kinds = {self.cfg.kinds!r}: not among {', '.join(KINDS)}. Fix: one "
                        "or more of these.")
    super().__post_init__()

  def generate(self, rng: np.random.Generator) -> Problem:
    kind = self.cfg.kinds[int(rng.integers(len(self.cfg.kinds)))]
    question, answer = KINDS[kind](rng)
    return Problem(question, str(answer), str(answer), id=f"{kind}: {question}")

  def more_problems(self) -> str:
    return f"more kinds than task.kinds = {','.join(self.cfg.kinds)}"

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if the completion is the number and nothing else, with or without a full stop."""
    numbers = NUMBER.findall(completion)
    correct = completion.strip().removesuffix(".") == problem.answer
    lenient = bool(numbers) and numbers[-1] == problem.answer
    return Reward(float(correct), correct, components=(("lenient", float(lenient)),))
