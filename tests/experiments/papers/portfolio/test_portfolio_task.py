"""The task: days that are held out, and rewards of the table."""

import numpy as np
import pytest

from experiments.papers.portfolio import verdicts
from jaxrl_llm.config import TaskConfig, load_plugins
from jaxrl_llm.tasks import make_task

ASSETS, COLUMNS = 2, 9


def day(name: str, heldout: bool = False, kinds: str = "ia") -> verdicts.Day:
  rng = np.random.default_rng(len(name))
  rewards = rng.normal(size=COLUMNS) / 100
  return verdicts.Day(name, "+1-2ab", rewards - rewards[0], rng.normal(size=COLUMNS) / 100, kinds,
                      heldout)


@pytest.fixture
def days_file(tmp_path):
  path = tmp_path / "days.jsonl"
  verdicts.write_days(path, [day("x"), day("yy"), day("zzz", True), day("wwww", True, "na")])
  return str(path)


def task_of(days_file: str, seed: int = 0, **keys):
  load_plugins(("experiments.papers.portfolio.task",))
  return make_task(TaskConfig("portfolio_verdicts", days_file=days_file, **keys), seed, 8)


def test_training_and_held_out_days_are_apart(days_file):
  task, again, other = task_of(days_file), task_of(days_file), task_of(days_file, 1)
  trained = [problem for index in range(5) for problem in task.batch(index)]
  assert {problem.id for problem in trained} == {"x", "yy"}
  assert [problem.id for problem in task.heldout(2)] == ["zzz", "wwww"]
  assert task.batch(3) == again.batch(3) != other.batch(3)
  assert task.batch(2, 0, 2) + task.batch(2, 1, 2) == task.batch(2)
  assert task.heldout(2) == other.heldout(2)


def test_the_reward_is_the_cell_of_the_table(days_file):
  task = task_of(days_file)
  problem, row = task.heldout(1)[0], day("zzz")
  for column, verdict in enumerate(verdicts.all_verdicts(ASSETS)):
    reward = task.reward(problem, verdict)
    assert reward.value == pytest.approx(100 * row.rewards[column])
    parts = dict(reward.components)
    assert parts["gain"] == pytest.approx(100 * row.expected[column])
    assert parts["regret"] == pytest.approx(100 * (row.expected.max() - row.expected[column]))
    assert reward.correct == (column == row.expected.argmax()) == (verdict == problem.answer)
  for text in ("", "K", "KKK", "K+"):
    reward = task.reward(problem, text)
    assert reward.value == pytest.approx(100 * row.rewards.min()) and not reward.correct
