"""Worked answers with repeated lines, and what the table of length rewards reads from a run."""

import math

import pytest

from experiments.smollm2.lengths import sweep, task
from jaxrl_llm.config import RolloutConfig, TaskConfig
from jaxrl_llm.tasks import make_task


def problems(**keys):
  source = make_task(TaskConfig("repeated_chains", given=tuple(keys.items())), 0, 64,
                     limits=RolloutConfig(max_prompt_tokens=400, max_new_tokens=400))
  assert isinstance(source, task.RepeatedChains)
  return source, source.batch(0)


def lines(problem):
  """(lines that count, lines that are said again) of a worked answer."""
  *worked, answer = problem.demonstration.split("\n")
  assert answer.startswith("Answer: ")
  again = [i for i, line in enumerate(worked) if line.startswith("Again: ")]
  assert all(worked[i] == f"Again: {worked[i - 1]}" for i in again), "a copy follows its line"
  return len(worked) - len(again), len(again)


@pytest.mark.parametrize("slips", [0.0, 0.5])
def test_lines_are_said_again_as_they_are(slips):
  counts = [lines(problem) for problem in problems(steps=3, repeats=0.5, slips=slips)[1]]
  assert {steps for steps, _ in counts} == {3}
  assert 0.3 < sum(again for _, again in counts) / (3 * len(counts)) < 0.7


@pytest.mark.parametrize(("repeats", "again"), [(0.0, 0), (1.0, 3)])
def test_a_repeated_line_neither_pays_nor_costs(repeats, again):
  source, batch = problems(steps=3, repeats=repeats)
  assert {lines(problem) for problem in batch} == {(3, again)}
  assert all(source.reward(problem, problem.demonstration).correct for problem in batch)


RUN = {"sampled": [0.2, 0.4, 0.6], "length": [60.0, 50.0, 45.0]}


@pytest.mark.parametrize(("level", "tokens"), [(0.2, 60.0), (0.3, 55.0), (0.5, 47.5), (0.7, None)])
def test_tokens_at_an_accuracy(level, tokens):
  value = sweep.tokens_at(RUN, level)
  assert math.isnan(value) if tokens is None else value == pytest.approx(tokens)
  at_next = next((length for right, length in zip(*RUN.values(), strict=True) if right >= level),
                 math.nan)
  if level == 0.3:
    assert at_next != pytest.approx(tokens), "the next evaluation's length is another"


def test_the_level_is_what_all_runs_reach():
  assert sweep.common_level([RUN, RUN | {"sampled": [0.2, 0.5, 0.3]}]) == 0.5
