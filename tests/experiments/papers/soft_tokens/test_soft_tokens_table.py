"""experiments/papers/soft_tokens: the page says what the results say; the command."""

import json
import shutil
from pathlib import Path

import experiment_files
import numpy as np
import pytest

from experiments.papers.soft_tokens import soft_runs
from jaxrl_llm.config import TaskConfig, load_plugins
from jaxrl_llm.tasks import make_task

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "experiments" / "papers" / "soft_tokens"
run = experiment_files.load(FOLDER / "run.py")


def test_the_page_is_rendered_from_the_committed_results(tmp_path, monkeypatch):
  page = Path(shutil.copy(FOLDER / "README.md", tmp_path))
  run.render(tmp_path)
  assert page.read_text() == (FOLDER / "README.md").read_text()
  results = run.load()
  results[0]["soft"]["settings"]["hard greedy"]["right"] /= 2
  monkeypatch.setattr(run, "load", lambda: results)
  run.render(tmp_path)
  assert page.read_text() != (FOLDER / "README.md").read_text()


def task():
  load_plugins((str(FOLDER / "task.py"),))
  return make_task(TaskConfig("closed_chain", num_terms=3), 0, 400)


def test_half_of_the_demonstrations_slip_and_thoughts_are_right():
  slips = []
  for problem in task().batch(0):
    thought, answer = problem.demonstration.split("::=")
    values = [part[0] for part in thought.lstrip(":").split("=")[1:]]
    assert values[-1] == problem.answer and answer in values[-2:]
    assert len(problem.demonstration) + 1 <= task().longest_demonstration()
    assert task().reward(problem, f"{thought}::={problem.answer}").correct
    if values[-1] != values[-2]:
      assert not task().reward(problem, f"{thought}::={values[-2]}").correct
      slips.append(answer != problem.answer)
  assert 0.4 < np.mean(slips) < 0.6


@pytest.mark.nightly
def test_the_command_measures_every_training_and_setting(tmp_path, monkeypatch):
  """A short version of it, twice."""
  training = soft_runs.Training(updates=2, prompts=2, group_size=2, warmup=1)
  for name, value in {"STEPS": 2, "WIDTH": 8, "TRAINING": training, "GREEDY": 4, "SAMPLED": 2,
                      "SAMPLES": 2}.items():
    monkeypatch.setattr(run, name, value)
  for name in ("once", "again"):
    monkeypatch.setattr("sys.argv", ["run.py", "--seeds=100", f"--out={tmp_path / name}"])
    page = (FOLDER / "README.md").read_text()
    run.main()
    assert (FOLDER / "README.md").read_text() == page
  once, again = (json.loads((tmp_path / name / "seed_100.json").read_text())
                 for name in ("once", "again"))
  assert once == again and list(once) == [run.START, *run.RUNS]
  assert tuple(once["hard"]["settings"]) == run.SETTINGS


def greedy(results, training: str) -> np.ndarray:
  """Gain over the start in hard greedy accuracy, points, one for each seed."""
  return (run.values(results, training, "hard greedy", "right")
          - run.values(results, run.START, "hard greedy", "right"))


def test_every_mode_learns_on_every_seed_and_less_with_noise_of_three_embeddings():
  results = run.load()
  assert min(greedy(results, mode).min() for mode in ("hard", "fuzzy", "soft")) >= 10
  assert greedy(results, "fuzzy, large noise").mean() < greedy(results, "fuzzy").mean() - 10
