"""experiments/papers/counting: lists of every length, and answers that are right."""

from pathlib import Path

from jaxrl_llm.config import TaskConfig, load_plugins
from jaxrl_llm.tasks import make_task

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "counting"


def test_lists_and_their_lengths():
  load_plugins((str(FOLDER / "task.py"),))
  task = make_task(TaskConfig(name="list_length"), seed=0, batch_size=400)
  problems = task.batch(0)
  counts = [problem.prompt.count(",") + 1 for problem in problems]
  assert [problem.answer for problem in problems] == list(map(str, counts))
  assert sorted(set(counts)) == list(range(1, 10))
  lengths = {count: {len(problem.prompt) for problem in problems if problem.answer == str(count)}
             for count in range(1, 10)}
  assert all(lengths[n] & lengths[n + 1] for n in range(3, 9)), "the length would give it away"
  assert max(len(task.render(problem)) for problem in problems) <= task.longest_prompt() == 36
  assert max(len(task.demonstration(problem)) for problem in problems) == 2
  for text, right in (("4", True), ("5", False), ("4.", False), ("", False)):
    assert task.reward(problems[counts.index(4)], text).correct is right
