"""Where completions of tasks go wrong: steps that do not follow from the steps before them."""

from typing import NamedTuple

from jaxrl_llm.tasks.arithmetic import OPERATIONS, ModularChain
from jaxrl_llm.tasks.recurrence import VALUES, Recurrence
from jaxrl_llm.types import Problem, Task

OTHER = "other"


class Mistake(NamedTuple):
  """A step of a completion that does not follow from the steps before it.

  Attributes:
    place: of its character in the completion, from 0.
    kind: mistakes that are learnt and unlearnt together, for tables.
  """

  place: int
  kind: str


def mistakes_of(task: Task, problem: Problem, completion: str) -> list[Mistake]:
  """Returns the mistakes of a completion; a task of neither kind below says them itself."""
  if isinstance(task, Recurrence):
    return of_recurrence(task, problem, completion)
  if isinstance(task, ModularChain):
    return of_chain(problem, completion)
  return task.mistakes(problem, completion)


def of_chain(problem: Problem, completion: str) -> list[Mistake]:
  """Returns a wrong guess at the first character, or the first character that differs from the
  steps of the worked answer: a wrong value is carried on.
  """
  steps, value = ":" + problem.prompt[0], int(problem.prompt[0])
  for sign, digit in zip(problem.prompt[1::2], problem.prompt[2::2], strict=True):
    value = OPERATIONS[sign](value, int(digit)) % 10
    steps += f"{sign}{digit}={value}"
  if not completion.startswith(":"):
    return [] if completion == f"={value}" else [Mistake(0, "guess")]
  if completion == steps:
    return []
  pairs = enumerate(zip(completion, steps, strict=False))
  end = min(len(completion), len(steps))
  return [Mistake(next((place for place, (text, right) in pairs if text != right), end), "step")]


def of_recurrence(task: Recurrence, problem: Problem, completion: str) -> list[Mistake]:
  """Returns the steps that do not follow from the values before them, by the kind of their context.
  A text that is no value, or a wrong length, is the last that is looked at.
  """
  out, history = [], problem.prompt
  for place, text in enumerate(completion[:task.cfg.steps]):
    if text not in VALUES:
      return [*out, Mistake(place, OTHER)]
    if VALUES[text] != task.next_value(history):
      out.append(Mistake(place, task.context_of(history).kind))
    history += text
  return out + [Mistake(len(completion), OTHER)] * (len(completion) != task.cfg.steps)
