"""Counts in SmolLM2: the prompts hide no other cue."""

import collections

import numpy as np

from experiments.smollm2 import counting_task
from jaxrl_llm.config import TaskConfig
from jaxrl_llm.tasks import make_task


def problems(seed: int, count: int):
  return make_task(TaskConfig(name="occurrences"), seed, count).batch(0)


def words_of(problem) -> list[str]:
  return problem.prompt.removeprefix("Words: ").split(".")[0].split(", ")


def test_the_answer_is_how_often_the_word_occurs():
  for problem in problems(0, 200):
    target = problem.prompt.removesuffix("?").rsplit(" ", 1)[1]
    assert words_of(problem).count(target) == int(problem.answer)


def test_neither_length_nor_place_says_the_count():
  """Wrong: a list of the asked word alone, as long as its count."""
  drawn = problems(1, 900)
  assert {len(words_of(problem)) for problem in drawn} == {counting_task.LENGTH}
  counts = collections.Counter(problem.answer for problem in drawn)
  assert set(counts) == set(counting_task.DIGITS) and min(counts.values()) > 60
  places = [np.flatnonzero([word == problem.prompt[:-1].rsplit(" ", 1)[1]
                            for word in words_of(problem)]).mean() for problem in drawn]
  assert abs(np.corrcoef(places, [int(problem.answer) for problem in drawn])[0, 1]) < 0.12


def test_only_the_digit_alone_is_right():
  task, (problem,) = make_task(TaskConfig(name="occurrences"), 0, 1), problems(0, 1)
  assert task.reward(problem, problem.answer).correct
  assert not task.reward(problem, f"There are {problem.answer}").correct
