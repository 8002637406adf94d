"""The recurrence of jaxrl_llm/tasks/recurrence.py with completions of several lengths.

  prompt      3719
  completion  25g5...           at least `task.shortest` values, and the end

All values of a completion count, so that a longer one goes wrong more often. A demonstration has
`task.shortest` to `task.steps` values, each number as often as any other, whether it is right or
not.
"""

import dataclasses

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.fields import option
from jaxrl_llm.tasks.keys import RecurrenceKeys
from jaxrl_llm.tasks.recurrence import Recurrence
from jaxrl_llm.types import Problem, Reward


@dataclasses.dataclass(frozen=True)
class EndingKeys(RecurrenceKeys):
  """Config keys of the task `ending_recurrence`."""

  shortest: int = option(12, "fewest values of a completion", low=1)


@register.task("ending_recurrence", EndingKeys)
class EndingRecurrence(Recurrence):
  """Asks for the next `task.shortest` values of a recurrence, or more; all of them count."""

  def reward(self, problem: Problem, completion: str) -> Reward:
    count = max(len(completion), self.cfg.shortest)
    return super().reward(dataclasses.replace(problem, answer=problem.answer[:count]), completion)

  def generate(self, rng: np.random.Generator) -> Problem:
    problem = super().generate(rng)
    length = int(rng.integers(self.cfg.shortest, self.cfg.steps + 1))
    return dataclasses.replace(problem, demonstration=problem.demonstration[:length])
