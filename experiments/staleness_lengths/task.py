"""The recurrence of jaxrl_llm/tasks/recurrence.py with ends that the values decide.

  prompt      3719
  completion  2j09b2f0a64p...    up to the first 7 behind an even value, and the end

A completion has 1 to `task.steps` values, 16 on average with 31. The policy cannot choose: one that
ends earlier or later is wrong. A demonstration with mistakes ends where its written values say.
"""

import dataclasses

from jaxrl_llm import register
from jaxrl_llm.tasks.keys import RecurrenceKeys
from jaxrl_llm.tasks.recurrence import VALUES, Recurrence
from jaxrl_llm.types import Problem

LAST = 7


def end_of(text: str, prompt: str) -> int:
  """Returns how many values of `text`, in either notation, stand up to and with the first that ends
  it; all of them without one.
  """
  values = [VALUES[character] for character in prompt + text]
  return next((i for i in range(1, len(text) + 1)
               if values[len(prompt) + i - 1] == LAST and values[len(prompt) + i - 2] % 2 == 0),
              len(text))


@register.task("stopping_recurrence", RecurrenceKeys)
class StoppingRecurrence(Recurrence):
  """Asks for the next values of a recurrence, up to the first 7 behind an even one."""

  def _problem(self, *sample) -> Problem:
    problem = super()._problem(*sample)
    answer, demonstration = (text[:end_of(text, problem.prompt)]
                             for text in (problem.answer, problem.demonstration))
    return dataclasses.replace(problem, answer=answer, demonstration=demonstration)
