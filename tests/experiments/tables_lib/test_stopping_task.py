"""The recurrence whose values decide where a completion ends."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from jaxrl_llm.config import TaskConfig, load_plugins
from jaxrl_llm.tasks import make_task
from jaxrl_llm.tasks.recurrence import VALUES

FILE = Path(__file__).parents[3] / "experiments/staleness_lengths/task.py"
STEPS = 31


def task(**keys):
  load_plugins((str(FILE),))
  return make_task(TaskConfig("stopping_recurrence", steps=STEPS, **keys), 0, 200)


def first_end(text: str) -> int:
  """The end, a second time, by two lists."""
  values = [VALUES[character] for character in text]
  ends = [i for i, (before, last) in enumerate(itertools.pairwise(values), 1)
          if i >= 4 and last == 7 and before % 2 == 0]
  return min([*ends, len(text) - 1]) - 3


@pytest.mark.parametrize("keys", [
    {}, {"careless": 0.6, "misread": 9, "mistake_contexts": (20,), "mistake_rates": (0.5,)}])
def test_completions_end_with_the_first_pair(keys):
  problems = task(**keys).batch(0)
  for problem in problems:
    for text in (problem.answer, problem.demonstration):
      assert first_end(problem.prompt + text) == len(text)


def test_another_length_is_wrong():
  stopping = task()
  for problem in stopping.batch(0):
    assert stopping.reward(problem, problem.answer).correct
    for text in (problem.answer[:-1], problem.answer + "4"):
      assert not stopping.reward(problem, text).correct


def test_lengths_are_those_of_the_page():
  stopping = task()
  lengths = [len(problem.answer) for i in range(20) for problem in stopping.batch(i)]
  assert np.mean(lengths) == pytest.approx(16, abs=0.7)
  assert np.percentile(lengths, [25, 75]) == pytest.approx([6, 29], abs=1)
