"""A recurrence of digits: right values, planted mistakes by kind and place."""

import numpy as np
import pytest

from experiments.tables_lib.mistakes import Mistake, mistakes_of
from jaxrl_llm.config import TaskConfig
from jaxrl_llm.tasks.recurrence import CARELESS, DIGITS, Recurrence
from jaxrl_llm.types import Problem

SIZES = {"mistake_contexts": (20, 30), "mistake_rates": (0.9, 0.2), "slips": 0.01}


def task(**keys) -> Recurrence:
  return Recurrence(TaskConfig("recurrence", **{"steps": 24, **SIZES, **keys}), 0, 200)


def continued(prompt: str, steps: int, lag: int = 4) -> str:
  """The recurrence, a second time."""
  values = [int(digit) for digit in prompt]
  for _ in range(steps):
    values.append((values[-1] + values[-lag]) % 10)
  return "".join(map(str, values[lag:]))


def test_answers_are_right_and_only_they():
  plain = task()
  for problem in plain.batch(0):
    assert problem.answer == continued(problem.prompt, 24)
    assert plain.reward(problem, problem.answer).value == 1.0
    for wrong in (problem.answer[:-1], problem.answer + "1", "x" + problem.answer[1:]):
      assert plain.reward(problem, wrong).value == 0.0


def rates(planned: Recurrence) -> dict[str, float]:
  """Mistakes of each kind in the demonstrations, for each time that its context came up."""
  mistakes, met = {}, {}
  for problem in planned.batch(0) + planned.batch(1):
    text = problem.prompt
    for written in problem.demonstration:
      context = planned.context_of(text)
      met[context.kind] = met.get(context.kind, 0) + (context.rate > 0)
      text += written
    for mistake in mistakes_of(planned, problem, problem.demonstration):
      mistakes[mistake.kind] = mistakes.get(mistake.kind, 0) + 1
  return {kind: mistakes.get(kind, 0) / met[kind] for kind in met if met[kind]}


@pytest.mark.parametrize("context", [2, 3])
def test_kinds_of_mistakes_have_their_rates(context):
  measured = rates(task(context=context, mistake_contexts=(20, 30) if context == 2 else (200, 300)))
  assert measured["mistake 0.9"] == pytest.approx(0.9, abs=0.04)
  assert measured["mistake 0.2"] == pytest.approx(0.2, abs=0.04)
  assert measured["slip"] == pytest.approx(0.01, abs=0.006)


def test_careless_operands_are_misread_and_careful_ones_not():
  planned = task(careless=0.6, misread=30, mistake_contexts=(), mistake_rates=(), slips=0.0)
  text = "".join(problem.demonstration for problem in planned.batch(0))
  share = np.mean([character in CARELESS for character in text])
  assert share == pytest.approx(0.6, abs=0.03)
  kinds = {mistake.kind for problem in planned.batch(0)
           for mistake in mistakes_of(planned, problem, problem.demonstration)}
  assert kinds == {"misread"} and rates(planned) == {"misread": 1.0}


def test_a_mistake_is_named_once_and_what_follows_from_it_is_none():
  plain = task(slips=0.0)
  problem = Problem("3719", continued("3719", 24))
  wrong = DIGITS[(int(problem.answer[3]) + 5) % 10]
  text = problem.answer[:3] + wrong
  text += continued((problem.prompt + text)[-4:], 20)
  assert text != problem.answer
  assert [mistake.place for mistake in mistakes_of(plain, problem, text)] == [3]
  assert mistakes_of(plain, problem, problem.answer[:9]) == [Mistake(9, "other")]
  assert mistakes_of(plain, problem, "<pad>" + problem.answer) == [Mistake(0, "other")]
  assert mistakes_of(plain, problem, problem.answer) == []
