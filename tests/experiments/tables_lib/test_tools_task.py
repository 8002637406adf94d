"""experiments/tools: a recurrence with values that only a tool knows, and its mistakes."""

import re
from pathlib import Path

import pytest

from jaxrl_llm.config import TaskConfig, load_plugins
from jaxrl_llm.rollouts.environment import ENVIRONMENTS, Continue, Stop
from jaxrl_llm.tasks import make_task
from jaxrl_llm.types import STOP_TOKEN, STOP_TURNS

FOLDER = Path(__file__).parents[3] / "experiments" / "tools"
KINDS = ("guess", "needless", "misused", "slip")


@pytest.fixture(scope="module")
def task():
  load_plugins((str(FOLDER / "recurrence.py"),))
  return make_task(TaskConfig("tool_recurrence", steps=31), 0, 1000)


@pytest.fixture(scope="module")
def problems(task):
  return task.batch(0)


def places_of(answer: str) -> dict[str, int]:
  """First places of a right answer: hidden, behind the tool's value, and behind two others."""
  patterns = {"hidden": r"\?", "behind": r"(?<=\?)\d", "other": r"(?<=\d\d)\d"}
  matches = {where: re.search(pattern, answer) for where, pattern in patterns.items()}
  return {where: match.start() for where, match in matches.items() if match}


def replaced(text: str, place: int, value: str) -> str:
  return text[:place] + value + text[place + 1:]


def kinds(task, problem, text: str) -> list[str]:
  return [mistake.kind for mistake in task.mistakes(problem, text)]


def test_only_right_values_of_the_right_number_are_rewarded(task, problems):
  for problem in problems[:50]:
    answer = problem.answer
    assert task.reward(problem, answer).value == 1.0
    for text in ("", answer[:-1], answer + "1", answer + "?", answer[:-1] + "x"):
      assert task.reward(problem, text).value == 0.0
      assert kinds(task, problem, text)[-1] == "other"


def test_a_mistake_of_each_kind_costs_the_reward(task, problems):
  """Put into right answers, at the place where it can stand."""
  seen: set[str] = set()
  for problem in problems[:100]:
    for where, place in places_of(problem.answer).items():
      values = "0123456789" if where == "hidden" else "?" + "0123456789".replace(
          problem.answer[place], "")
      for value in values:
        text = replaced(problem.answer, place, value)
        at = next((mistake for mistake in task.mistakes(problem, text)
                   if mistake.place == place), None)
        if at is None:  # by luck: a guess, or what the tool writes, is the right value
          continue
        assert task.reward(problem, text).value == 0.0
        assert (at.kind == "guess") == (where == "hidden")
        assert (at.kind == "needless") == (value == "?")
        seen.add(at.kind)
  assert seen == set(KINDS)


def replays(environment, task, problem) -> bool:
  """Whether the environment ends the turns of a demonstration, and inserts, as it shows."""
  ids, mask = task.demonstration(problem), task.demonstration_mask(problem)
  environment, begin = environment.for_rows({5: problem}), 0
  for place, ours in enumerate(mask):
    if not ours:
      if environment.turn_end(ids[begin:]) != place - begin:
        return False
      if environment.step(5, ids[begin:place]) != Continue((ids[place],)):
        return False
      begin = place + 1
  return (environment.turn_end(ids[begin:]) == len(ids) - begin and
          environment.step(5, ids[begin:]) == Stop(STOP_TOKEN))


def test_a_demonstration_is_a_rollout(task, problems):
  entry = ENVIRONMENTS["hidden_digits"].function
  tool = entry(task.tokenizer, task.stop_ids, 1, None)
  assert all(replays(tool, task, problem) for problem in problems[:50])
  (call,) = tool.ids("?")
  assert tool.for_rows({5: problems[0]}).step(5, [call], last=True) == Stop(STOP_TURNS)

  class Forgetful(entry):
    """Answers from the last value alone."""

    def step(self, row_id, turn_ids, last=False):
      return super().step(row_id, turn_ids[-2:], last)

  forgetful = Forgetful(task.tokenizer, task.stop_ids, 1, None)
  assert not all(replays(forgetful, task, problem) for problem in problems[:50])
