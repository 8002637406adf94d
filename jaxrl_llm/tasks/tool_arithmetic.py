"""Products of two numbers that are too long to guess, with a calculator that one may call.

  prompt      123*456
  guessed     =56088
  called      [123*456]56088;=56088      56088; is the tool's, not the policy's

A small network cannot multiply, but it can copy: the expression into brackets, and the value that
follows them behind the equals sign. Demonstrations mix the two manners (`task.worked_share`: the
share that calls). Guesses show the right product as well; imitating them teaches the form, and
hardly ever a right number. That calling pays is left for RL.
"""

import dataclasses
import re

import numpy as np

from jaxrl_llm.fields import option
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

ALPHABET = "0123456789+-*=[];.?"


@dataclasses.dataclass(frozen=True)
class ToolArithmeticConfig:
  """Multiply two numbers, with a calculator at hand."""

  digits: int = option(3, "digits of each number", low=2, high=12)


@dataclasses.dataclass(frozen=True)
class ToolArithmeticKeys:
  """What only `tool_arithmetic` reads."""

  tool_arithmetic: ToolArithmeticConfig = ToolArithmeticConfig()
  worked_share: float = option(1.0, "share of demonstrations that call the tool; the others only "
                               "answer", low=0.0, high=1.0)


class ToolArithmetic(Procedural):
  """Two numbers of `task.tool_arithmetic.digits` digits; its own tokenizer has one token per
  character.

  Attributes:
    protocol, tool: names of the notation and the tool that its rollouts need
      (rollouts/environment.py).
  """

  protocol, tool = "inline", "calculator"

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(ALPHABET)

  def reward(self, problem: Problem, completion: str) -> Reward:
    """1 if what stands behind the last equals sign is the product, else 0.

    Args:
      completion: what the policy wrote, in all its turns together, without what the tool inserted:
        a right value that only the tool wrote is no answer.
    """
    _, equals, answer = completion.rpartition("=")
    correct = bool(equals) and answer.strip() == problem.answer
    return Reward(float(correct), correct)

  def demonstration(self, problem: Problem) -> list[int]:
    """Completion ids, inserted text and end of sequence included; each piece is encoded by itself,
    as in a rollout.
    """
    return [i for ids, _ in self._pieces(problem) for i in ids]

  def demonstration_mask(self, problem: Problem) -> list[bool]:
    """True on the ids of `demonstration` that the policy writes, False on what the tool inserts."""
    return [ours for ids, ours in self._pieces(problem) for _ in ids]

  def longest_prompt(self) -> int:
    return 2 * self.cfg.tool_arithmetic.digits + 1 if self._by_characters else super(
    ).longest_prompt()

  def longest_demonstration(self) -> int:
    """Tokens, inserted text and end of sequence included."""
    if not self._by_characters:
      return super().longest_demonstration()
    digits = self.cfg.tool_arithmetic.digits
    return 6 * digits + 6 if self.cfg.worked_share else 2 * digits + 2

  @property
  def _by_characters(self) -> bool:
    return self.own_tokenizer and self.cfg.prompt.style == "plain"

  def split_key(self, problem: Problem) -> str:
    """The same two numbers the other way round are the same question."""
    return "*".join(sorted(problem.id.split("*")))

  def scarce(self) -> str:
    return f"more digits than task.tool_arithmetic.digits = {self.cfg.tool_arithmetic.digits}"

  def draw_one(self, rng: np.random.Generator) -> Problem:
    digits = self.cfg.tool_arithmetic.digits
    a, b = rng.integers(10 ** (digits - 1), 10**digits, 2).tolist()
    question, answer = f"{a}*{b}", str(a * b)
    shown = f"[{question}]{answer};={answer}" if rng.random(
    ) < self.cfg.worked_share else f"={answer}"
    prompt = question if self.own_tokenizer else (
        f"Compute {question}. An expression in square brackets, such as [12*34], is followed by "
        "its value and a "
        "semicolon. End with an equals sign and the result.")
    return Problem(prompt, answer, shown, id=question)

  def _pieces(self, problem: Problem) -> list[tuple[list[int], bool]]:
    """(ids, whether the policy writes them) of a demonstration."""
    call, inserted, rest = re.fullmatch(r"(?:(\[[^\]]*\])([^;]*;))?(.*)",
                                        problem.demonstration).groups(default="")
    encode = lambda text: tokenizers.encode(self.tokenizer, text) if text else []
    return [(encode(call), True), (encode(inserted), False), (encode(rest), True),
            ([self.tokenizer.eos_token_id], True)]
