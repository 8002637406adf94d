"""experiments/papers/counting: its page says what its results say, and they meet what they must."""

import copy
import dataclasses
from pathlib import Path

import experiment_files
import numpy as np
import pytest

from experiments.tables_lib import seed_results
from jaxrl_llm.config import TaskConfig, load_plugins
from jaxrl_llm.models import Model
from jaxrl_llm.tasks import make_task

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "counting"


def loaded():
  return experiment_files.load(FOLDER / "run.py")


def committed():
  return seed_results.load(FOLDER, loaded().SEEDS)


def nested(results) -> bool:
  """Whether every variant is at least as accurate in a more restricted mode."""
  return all(one["restricted"] >= one["full"] >= one["generated"]
             for seed in results for one in seed.values())


def meets(results) -> bool:
  """Whether each seed has the planted bottleneck and both repairs."""
  found = []
  for one in results:
    found += [one["planted"]["r_squared"][-1] > 0.99, one["trained"]["r_squared"][-1] > 0.99,
              one["trained"]["full"] >= 0.95, one["rows, hinge"]["restricted"] >= 0.95,
              one["rows, cross-entropy"]["restricted"] >= 0.95, one["LoRA q/v"]["full"] >= 0.9,
              one["rows, hinge"]["changed"] == one["rows, cross-entropy"]["changed"] == 9 * 128]
  mean = np.mean([one["planted"]["restricted"] for one in results])
  return all(found) and mean < 1 / 3


def test_the_committed_results_meet_what_they_must():
  results = committed()
  assert len(results) == 5 and nested(results) and meets(results)
  for name, field, value in (("planted", "restricted", 1.9), ("LoRA q/v", "full", 0.89),
                             ("rows, hinge", "restricted", 0.94), ("rows, hinge", "changed", 1153),
                             ("planted", "r_squared", [0.98])):
    changed = copy.deepcopy(results)
    changed[2][name][field] = value
    assert not meets(changed), (name, field)
  changed = copy.deepcopy(results)
  changed[1]["LoRA q/v"]["restricted"] = changed[1]["LoRA q/v"]["full"] - 0.01
  assert not nested(changed)


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


@pytest.mark.nightly
def test_a_small_run_measures_all_variants(monkeypatch):
  """Few steps, prompts and layers: all is measured, what is frozen is frozen, modes are nested."""
  run = loaded()
  monkeypatch.setattr(run, "SHAPE", dataclasses.replace(run.SHAPE, num_layers=2))
  monkeypatch.setattr(run, "MODEL", Model(run.SHAPE).of_single_segments)
  monkeypatch.setattr(run, "LAYERS", (1, 2))
  for name, value in {"STEPS": 4, "LORA_STEPS": 3, "ROW_STEPS": 5, "FITTED": 64, "HELD": 32,
                      "TEST": 32, "BATCH": 16}.items():
    monkeypatch.setattr(run, name, value)
  found = run.one_seed(7)
  assert list(found) == list(committed()[0]) and nested([found])
  for name, one in found.items():
    assert {key for key in one if isinstance(one[key], list)} == {
        "r_squared", "rounded", "alignment", "largest_alignment", "lens", "rank"}
    sizes = {"planted": 0, "LoRA q/v": 2 * 128 * (128 + 64)}
    assert one["changed"] == sizes.get(name, 9 * 128), name
  for name in ("random rows", "rows, hinge", "rows, cross-entropy"):
    assert found[name]["r_squared"] == found["planted"]["r_squared"]
  assert found["planted"]["largest_alignment"][-1] < 1e-6
  assert found["random rows"]["largest_alignment"][-1] > 1e-3
