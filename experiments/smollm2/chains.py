"""Chains of small sums with worked answers: a task of many decisions for small language models.

configs/smollm2_chains.py trains on it. A completion is right if it ends with the right answer; each
line before may be right or wrong, and pays nothing.
"""

import dataclasses
import re

import numpy as np

from experiments.smollm2.questions import NUMBER
from jaxrl_llm import register
from jaxrl_llm.fields import option
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

ANSWER = re.compile(r"Answer: (-?\d+)\.?\s*\Z")
SMALLEST, LARGEST = 1, 99  # values on the way


def _step(rng: np.random.Generator, value: int, change: int) -> tuple[str, str, int]:
  """Returns a step in words, its operator with the number ("+ 4"), and the value after it.

  Args:
    change: the most that it adds or subtracts.
  """
  steps = []
  if value < LARGEST:
    more = int(rng.integers(1, min(change, LARGEST - value) + 1))
    steps.append((f"Add {more}.", f"+ {more}", value + more))
  if value > SMALLEST:
    less = int(rng.integers(1, min(change, value - SMALLEST) + 1))
    steps.append((f"Subtract {less}.", f"- {less}", value - less))
  if 2 * value <= LARGEST:
    steps.append(("Double it.", "* 2", 2 * value))
  return steps[int(rng.integers(len(steps)))]


def _line(rng: np.random.Generator, value: int, operation: str, slips: float) -> tuple[str, int]:
  """Returns a line of a worked answer and the value it ends with, off by 1 or 2 in a slip."""
  sign, number = operation.split()
  value_after = value * 2 if sign == "*" else value + int(sign + number)
  if slips and rng.random() < slips:
    value_after += int(rng.choice((-2, -1, 1, 2)))
  return f"{value} {operation} = {value_after}", value_after


@dataclasses.dataclass(frozen=True)
class ChainsKeys:
  """Config keys of the task `chains`."""

  steps: int = option(4, "steps of a problem, each a line of its worked answer", low=1, high=16)
  change: int = option(20, "the most that a step adds or subtracts", low=1, high=20)
  slips: float = option(0.0, "share of the worked answers' lines that are wrong by 1 or 2",
                        low=0.0, high=1.0)


@register.task("chains", ChainsKeys)
class Chains(Procedural):
  """Asks for the result of `task.steps` steps; the demonstration has a line for each."""

  def generate(self, rng: np.random.Generator) -> Problem:
    value = worked_value = int(rng.integers(5, 50))
    words, lines = [f"Start with {value}."], []
    for _ in range(self.cfg.steps):
      word, operation, value = _step(rng, value, self.cfg.change)
      line, worked_value = _line(rng, worked_value, operation, self.cfg.slips)
      words.append(word)
      lines.append(line)
    worked = "\n".join([*lines, f"Answer: {worked_value}"])
    question = " ".join(words)
    return Problem(question, str(value), worked, id=f"chain: {question}")

  def more_problems(self) -> str:
    return "a larger task.steps"

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if the completion ends with `Answer: ` and the answer; `lenient`, which pays nothing,
    takes any last number.
    """
    marked, numbers = ANSWER.search(completion), NUMBER.findall(completion)
    correct = marked is not None and marked[1] == problem.answer
    lenient = bool(numbers) and numbers[-1] == problem.answer
    return Reward(float(correct), correct, components=(("lenient", float(lenient)),))
