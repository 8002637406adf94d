"""Chains of small sums whose worked answers say some lines twice: a task for rewards of length.

A repeated line adds nothing: it has the same slip as the line that it repeats. A completion is
right under the rule of `chains`, with or without such lines.
"""

import dataclasses

import numpy as np

from experiments.smollm2.chains import Chains, ChainsKeys
from jaxrl_llm import register
from jaxrl_llm.fields import option
from jaxrl_llm.types import Problem


@dataclasses.dataclass(frozen=True)
class RepeatedChainsKeys(ChainsKeys):
  """Config keys of the task `repeated_chains`: those of `chains`, and one."""

  repeats: float = option(0.5, "share of the worked answers' lines that are said twice", low=0.0,
                          high=1.0)


@register.task("repeated_chains", RepeatedChainsKeys)
class RepeatedChains(Chains):
  """Asks as `chains` does; the demonstration says each line again with probability
  `task.repeats`.
  """

  def generate(self, rng: np.random.Generator) -> Problem:
    problem = super().generate(rng)
    *lines, answer = problem.demonstration.split("\n")
    worked = []
    for line in lines:
      worked.append(line)
      if rng.random() < self.cfg.repeats:
        worked.append(f"Again: {line}")
    return dataclasses.replace(problem, demonstration="\n".join([*worked, answer]))
