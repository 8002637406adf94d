"""Chains of digits, evaluated from left to right modulo 10.

  prompt      7*3+4-8
  answered    =7
  worked      :7*3=1+4=5-8=7

One step is a table look-up; the full chain in one step is a composition that is hard for a small
network. Only the last number is checked, so the policy is free in how it gets there.

A share `task.worked_share` of the demonstrations writes every step, and the others answer
immediately. The warm start imitates this mixture; RL has to find that working step by step pays.
"""

import operator

import numpy as np

from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ALPHABET = "0123456789+-*=:"


class ModularChain(Procedural):
  """Asks for the value of chains of `task.num_terms` digits."""

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(ALPHABET)

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if the text after the last equals sign is the answer, else 0."""
    correct = completion.rsplit("=", 1)[-1] == problem.answer
    return Reward(float(correct), correct)

  def longest_prompt(self) -> int:
    return 2 * self.cfg.num_terms - 1 if self.plain_characters else super().longest_prompt()

  def longest_demonstration(self) -> int:
    if not self.plain_characters:
      return super().longest_demonstration()
    return 4 * self.cfg.num_terms - 1 if self.cfg.worked_share else 3

  def more_problems(self) -> str:
    return f"more terms than task.num_terms = {self.cfg.num_terms}"

  def generate(self, rng: np.random.Generator) -> Problem:
    digits = rng.integers(0, 10, self.cfg.num_terms).tolist()
    signs = rng.choice(list(OPERATIONS), self.cfg.num_terms - 1).tolist()
    return _problem(digits, signs, worked=rng.random() < self.cfg.worked_share)


def _problem(digits: list[int], signs: list[str], *, worked: bool) -> Problem:
  prompt = steps = str(digits[0])
  value = digits[0]
  for sign, digit in zip(signs, digits[1:], strict=True):
    value = OPERATIONS[sign](value, digit) % 10
    prompt += f"{sign}{digit}"
    steps += f"{sign}{digit}={value}"
  return Problem(prompt, str(value), f":{steps}" if worked else f"={value}", id=prompt)
