"""The chains of the second SmolLM2 recipe, their worked answers and their reward."""

import re

import pytest

from experiments.smollm2 import chains
from jaxrl_llm.config import RolloutConfig, TaskConfig
from jaxrl_llm.tasks import make_task

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def task(steps, seed=0, **keys):
  return make_task(TaskConfig("chains", given=(("steps", steps), *keys.items())), seed, 16,
                   limits=RolloutConfig(max_prompt_tokens=400, max_new_tokens=400))


def worked(problem):
  """(lines of the worked answer, how many of them are wrong, its result), line after line."""
  value, wrong = int(problem.prompt.split()[2].rstrip(".")), 0
  *lines, last = problem.demonstration.split("\n")
  for line in lines:
    a, operation, b, _, stated = line.split()
    off = int(stated) - OPERATIONS[operation](value, int(b))
    assert int(a) == value and abs(off) <= 2, line
    value, wrong = int(stated), wrong + (off != 0)
  assert last == f"Answer: {value}"
  return len(lines), wrong, value


@pytest.mark.parametrize("steps", [1, 5])
def test_worked_answers_are_right_and_are_paid(steps):
  asked = task(steps)
  for problem in [*asked.batch(0), *asked.heldout(8)]:
    assert worked(problem) == (steps, 0, int(problem.answer))
    assert chains.SMALLEST <= int(problem.answer) <= chains.LARGEST
    assert asked.reward(problem, problem.demonstration).correct


def test_a_step_adds_at_most_what_the_key_says():
  changes = {most: max(int(number) for problem in task(5, change=most).heldout(64)
                       for number in re.findall(r"(?:Add|Subtract) (\d+)", problem.prompt))
             for most in (1, 9, 20)}
  assert changes == {1: 1, 9: 9, 20: 20}


def test_only_the_answer_at_the_end_is_paid():
  asked = task(2)
  problem = chains.Problem("Start with 3. Add 4. Double it.", "14", "")
  paid = [text for text in (
      "3 + 4 = 7\n7 * 2 = 14\nAnswer: 14", "Answer: 14.", "Answer: 14 or 15", "14",
      "Answer: 7\nAnswer: 14", "Answer: 14\nAnswer: 7", "Answer: 140", "Answer: -14", "")
      if asked.reward(problem, text).value]
  assert paid == ["3 + 4 = 7\n7 * 2 = 14\nAnswer: 14", "Answer: 14.", "Answer: 7\nAnswer: 14"]


@pytest.mark.parametrize("slips", [0.2, 1.0])
def test_slips_are_in_worked_answers_alone(slips):
  problems = task(5, slips=slips).heldout(400)
  shares = sum(worked(problem)[1] for problem in problems) / (5 * len(problems))
  assert abs(shares - slips) < 0.04
  for problem in problems[:50]:  # the answer is that of the question
    value = int(problem.prompt.split()[2].rstrip("."))
    for sign, number in re.findall(r"(Add|Subtract|Double) (\d+|it)", problem.prompt):
      by = value if sign == "Double" else int(number)
      value += -by if sign == "Subtract" else by
    assert value == int(problem.answer)
