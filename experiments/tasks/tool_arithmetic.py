"""Products of two numbers that are too long to guess, with a calculator that one may call.

  prompt      123*456
  guessed     =56088
  called      [123*456]56088;=56088      "56088;" is written by the tool, not by the policy

A small network cannot multiply, but it can copy: the expression into brackets, and the value after
the brackets to the end. A share `task.worked_share` of the demonstrations calls the tool, and the
others guess. A guess shows the right product as well, but imitating it teaches only the form. RL
has to find that calling pays.
"""

import dataclasses
import re

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.fields import option
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

ALPHABET = "0123456789+-*=[];.?"
DEMONSTRATION = re.compile(r"(?:(\[[^\]]*\])([^;]*;))?(.*)")  # call, inserted value, answer


@dataclasses.dataclass(frozen=True)
class ToolArithmeticConfig:
  """Multiply two numbers, with a calculator at hand."""

  digits: int = option(3, "digits of each number", low=2, high=12)


@dataclasses.dataclass(frozen=True)
class ToolArithmeticKeys:
  """Config keys of the task `tool_arithmetic`."""

  tool_arithmetic: ToolArithmeticConfig = ToolArithmeticConfig()
  worked_share: float = option(1.0, "share of demonstrations that call the tool; the others only "
                               "answer", low=0.0, high=1.0)


@register.task("tool_arithmetic", ToolArithmeticKeys)
class ToolArithmetic(Procedural):
  """Asks for the product of two numbers of `task.tool_arithmetic.digits` digits."""

  protocol, tool = "inline", "calculator"

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(ALPHABET)

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if the text after the last equals sign is the product, else 0.

    Args:
      completion: the policy's text of all turns, without the text that the tool inserted, so that
        a right value that only the tool wrote does not count.
    """
    _, equals, answer = completion.rpartition("=")
    correct = bool(equals) and answer.strip() == problem.answer
    return Reward(float(correct), correct)

  def demonstration(self, problem: Problem) -> list[int]:
    """Returns the completion ids, with the tool's text and the end of sequence.

    The texts of the policy and of the tool are encoded one by one, as in a rollout.
    """
    return [i for ids, _ in self._pieces(problem) for i in ids]

  def demonstration_mask(self, problem: Problem) -> list[bool]:
    """Returns True on the ids of `demonstration` that the policy writes, False on the tool's."""
    return [ours for ids, ours in self._pieces(problem) for _ in ids]

  def longest_prompt(self) -> int:
    if not self.plain_characters:
      return super().longest_prompt()
    return 2 * self.cfg.tool_arithmetic.digits + 1

  def longest_demonstration(self) -> int:
    if not self.plain_characters:
      return super().longest_demonstration()
    digits = self.cfg.tool_arithmetic.digits
    return 6 * digits + 6 if self.cfg.worked_share else 2 * digits + 2

  def split_key(self, problem: Problem) -> str:
    """Returns the sorted numbers: their order does not change the question."""
    return "*".join(sorted(problem.id.split("*")))

  def more_problems(self) -> str:
    return f"more digits than task.tool_arithmetic.digits = {self.cfg.tool_arithmetic.digits}"

  def generate(self, rng: np.random.Generator) -> Problem:
    digits = self.cfg.tool_arithmetic.digits
    a, b = rng.integers(10 ** (digits - 1), 10**digits, 2).tolist()
    question, answer = f"{a}*{b}", str(a * b)
    calls = rng.random() < self.cfg.worked_share
    demonstration = f"[{question}]{answer};={answer}" if calls else f"={answer}"
    prompt = question if self.own_tokenizer else (
        f"Compute {question}. An expression in square brackets, such as [12*34], is followed by "
        "its value and a semicolon. End with an equals sign and the result.")
    return Problem(prompt, answer, demonstration, id=question)

  def _pieces(self, problem: Problem) -> list[tuple[list[int], bool]]:
    """Returns a demonstration as pieces (ids, whether the policy writes them)."""
    call, output, answer = DEMONSTRATION.fullmatch(problem.demonstration).groups(default="")
    texts = ((call, True), (output, False), (answer, True))
    pieces = [(tokenizers.encode(self.tokenizer, text), ours) for text, ours in texts if text]
    return [*pieces, ([self.tokenizer.eos_token_id], True)]
