"""Chains of digits that are worked out in a thought, and answered with a slip half of the time.

  prompt     7*3+4
  worked     :7*3=1+4=5::=5
  a slip     :7*3=1+4=5::=1

`::` is the phrase that closes a thought, and `=` opens the answer. The verdict is that of
`modular_chain`, on the text after the last equals sign.

A slip answers with the last but one value. Demonstrations slip at random, and a little more likely
the larger the first digit is: with probability SLIPS - TILT to SLIPS + TILT. A policy that imitates
them slips on about half of the chains, and RL has to find which value of the thought pays.
"""

import dataclasses

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.tasks.arithmetic import ModularChain
from jaxrl_llm.tasks.keys import ModularChainKeys
from jaxrl_llm.types import Problem

SLIPS, TILT = 0.5, 0.1
END, PREFILL = "::", "="


@register.task("closed_chain", ModularChainKeys)
class ClosedChain(ModularChain):
  """`modular_chain`, with a thought that ends in END and an answer after PREFILL.

  A demonstration that `task.worked_share` leaves without steps has an empty thought.
  """

  def generate(self, rng: np.random.Generator) -> Problem:
    problem = super().generate(rng)
    slips = rng.random() < SLIPS + TILT * (int(problem.prompt[0]) / 4.5 - 1)
    thought, answer = "", problem.answer
    if problem.demonstration.startswith(":"):
      thought = problem.demonstration
      if slips:
        answer = thought.split("=")[-2].lstrip(":")[0]
    return dataclasses.replace(problem, demonstration=thought + END + PREFILL + answer)

  def longest_demonstration(self) -> int:
    return super().longest_demonstration() + len(END + PREFILL) + 1
