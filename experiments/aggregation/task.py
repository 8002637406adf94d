"""The chains of jaxrl_llm/tasks/arithmetic.py with padding: length need not follow the mode.

  prompt      7*3+4-8
  answered    =7:::::
  worked      :7*3=1+4=5-8=7::

An answer may end with any number of colons. A demonstration that works the chain out ends with 0 to
5 of them, and one that answers at once with `task.guess_padding` more. So the padding says whether
worked answers, which are right more often, are longer than the others, as long or shorter; within
each mode, lengths vary and say nothing about being right.
"""

import dataclasses

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.tasks.arithmetic import ModularChain
from jaxrl_llm.types import Problem, Reward

FILLER = ":"
SPREAD = 6  # lengths that a mode's padding may have


@register.task("padded_chain", num_terms=4, worked_share=0.3, guess_padding=0)
class PaddedChain(ModularChain):
  """Asks for the value of chains of `task.num_terms` digits."""

  def longest_demonstration(self) -> int:
    return max(4 * self.cfg.num_terms - 2, self.cfg.guess_padding + 2) + SPREAD

  def reward(self, problem: Problem, completion: str) -> Reward:
    return super().reward(problem, completion.rstrip(FILLER))

  def generate(self, rng: np.random.Generator) -> Problem:
    problem = super().generate(rng)
    padding = int(rng.integers(SPREAD))
    if problem.demonstration.startswith("="):
      padding += self.cfg.guess_padding
    return dataclasses.replace(problem, demonstration=problem.demonstration + FILLER * padding)
