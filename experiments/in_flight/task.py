"""The recurrence of jaxrl_llm/tasks/recurrence.py with completions of several lengths.

  prompt      3719
  completion  25g5...           at least `task.counted` values, and the end

Only the first `task.counted` values count; what follows is free, so that the policy need not count
them. A demonstration has `task.counted` to `task.steps` values, each number as often as any other,
so a completion's length says nothing about its being right.
"""

import dataclasses

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.fields import option
from jaxrl_llm.tasks.keys import RecurrenceKeys
from jaxrl_llm.tasks.recurrence import Recurrence
from jaxrl_llm.types import Problem, Reward


@dataclasses.dataclass(frozen=True)
class OpenKeys(RecurrenceKeys):
  """Config keys of the task `open_recurrence`."""

  counted: int = option(19, "values of a completion that count, its first ones", low=1)


@register.task("open_recurrence", OpenKeys)
class OpenRecurrence(Recurrence):
  """Asks for the next `task.counted` values of a recurrence, or more."""

  def reward(self, problem: Problem, completion: str) -> Reward:
    return super().reward(problem, completion[:self.cfg.counted])

  def generate(self, rng: np.random.Generator) -> Problem:
    problem, counted = super().generate(rng), self.cfg.counted
    length = int(rng.integers(counted, self.cfg.steps + 1))
    return dataclasses.replace(problem, answer=problem.answer[:counted],
                               demonstration=problem.demonstration[:length])
