"""experiments/aggregation: which completions are right."""

from pathlib import Path

import pytest

from jaxrl_llm.config import TaskConfig, load_plugins
from jaxrl_llm.tasks import make_task

FOLDER = Path(__file__).parents[3] / "experiments" / "aggregation"


@pytest.fixture
def task():
  load_plugins((str(FOLDER / "task.py"),))
  return make_task(TaskConfig("ending_recurrence", steps=28, shortest=12), 0, 200)


def test_a_completion_may_end_late_and_all_of_it_counts(task):
  problem = task.batch(0)[0]
  answer = problem.answer
  assert len(answer) == 28
  for length in (12, 20, 28):
    assert task.reward(problem, answer[:length]).value == 1.0
  wrong = answer[:19] + str((int(answer[19]) + 1) % 10)
  for text in ("", answer[:11], wrong, answer + "1"):
    assert task.reward(problem, text).value == 0.0
