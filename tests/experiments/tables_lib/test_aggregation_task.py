"""experiments/aggregation: which completions are right, and what its page counts in them."""

from pathlib import Path

import numpy as np
import pytest

from experiments.tables_lib import sweeps
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
  assert {len(shown.demonstration) for shown in task.batch(0)} == set(range(12, 29))


def test_length_and_wrong_steps_of_rows():
  """3719 continues 2, 9, 0, 9, 1, 0; a letter stands for its number. One step of ten is wrong."""
  rows = [{"prompt": "3719", "prompt_length": 4, "completion": completion, "correct": correct,
           "tokens": np.zeros(5 + len(completion))}
          for completion, correct in (("cj09", True), ("290912", False))]
  measured = sweeps.module(FOLDER / "sweep.py").of_rows(rows)
  assert measured == pytest.approx({"length": 6, "right": 5, "wrong": 7, "correlation": -1,
                                    "wrong_steps": 10})
