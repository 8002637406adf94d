"""experiments/length_bands: the reward's published values, its task, and what a run must reach."""

import json
import math
import re
import shlex
from pathlib import Path

import experiment_files
import forked
import numpy as np
import pytest

from jaxrl_llm.config import RewardConfig, TaskConfig, load_plugins
from jaxrl_llm.tasks import make_task
from jaxrl_llm.tasks.rewards import RewardedTask
from jaxrl_llm.types import Problem

FOLDER = Path(__file__).parent.parent / "experiments" / "length_bands"
# (ratio, characters of the source): reward, with the band [0.8, 0.9]
GOLDEN = {(0.85, 20): 1.0, (1.0, 20): 0.018316, (0.75, 20): 0.105399, (0.6, 8): 0.000123,
          (1.2, 3): 1.0}


def loaded(name):
  return experiment_files.load(FOLDER / f"{name}.py")


@pytest.fixture
def reward():
  return loaded("reward")


def golden(band_of, band_length_reward) -> bool:
  """Whether a band and a reward give the published values."""
  return all(abs(band_length_reward(ratio, *band_of(source, 0.8, 0.9)) - paid) < 5e-7
             for (ratio, source), paid in GOLDEN.items())


def test_the_published_values(reward):
  assert golden(reward.band_of, reward.band_length_reward)


def test_wrong_rewards_do_not_give_them(reward):
  band_of, paid = reward.band_of, reward.band_length_reward
  for wrong in (lambda ratio, low, high: paid(ratio, low, high, mode="nearest"),
                lambda ratio, low, high: paid(ratio, low, math.inf)):
    assert not golden(band_of, wrong)
  for wrong in (lambda source, low, high: (low, high),  # one band for all sources
                lambda source, low, high: (band_of(source, low, high)[0], high)):
    assert not golden(wrong, paid)


@pytest.mark.parametrize("mode, at_the_edge", [("far", math.exp(-1)), ("nearest", 1.0)])
def test_what_is_paid_just_outside(reward, mode, at_the_edge):
  for ratio in (0.8 - 1e-9, 0.9 + 1e-9):
    assert reward.band_length_reward(ratio, 0.8, 0.9, 100.0, mode) == pytest.approx(at_the_edge)
  outside = [reward.band_length_reward(x, 0.8, 0.9, 100.0, mode) for x in (0.91, 1.0, 1.3, 5.0)]
  assert outside == sorted(outside, reverse=True) and outside[-1] < 1e-9


def test_bad_numbers_are_refused(reward):
  with pytest.raises(ValueError, match=r"low = 0\.9, reward\.high = 0\.8"):
    reward.band_length_reward(0.85, 0.9, 0.8)
  with pytest.raises(ValueError, match=r"mode = 'farther': allowed are 'far' and 'nearest'"):
    reward.band_length_reward(0.85, 0.8, 0.9, mode="farther")


def test_as_a_registered_reward():
  load_plugins((str(FOLDER / "reward.py"),))
  problem = Problem("x" * 8, "")
  for numbers, paid, inside in (({}, 1.0, 1.0), ({"wider": False}, math.exp(-100 * 0.15**2), 0.0),
                                ({"low": 0.7, "high": 0.74, "wider": False, "mode": "nearest"},
                                 math.exp(-100 * 0.01**2), 0.0)):
    task = RewardedTask(None, RewardConfig("band_length", length_weight=2.0, **numbers))
    outcome, = task.rewards([problem], ["y" * 6])
    assert outcome.value == pytest.approx(2 * paid)
    assert dict(outcome.components) == pytest.approx({"length": paid, "ratio": 0.75,
                                                      "inside": inside})
  outcome, = task.rewards([Problem("", "")], ["y"])
  assert "empty prompt" in outcome.unscored_reason


@pytest.mark.slow
def test_a_real_run_pays_for_lengths(tmp_path, reward):
  """The command at the head of the plugin."""
  shown = re.search(r"  python (.*?)\n\n", reward.__doc__, re.DOTALL)[1].replace("\\\n", " ")
  more = [f"--workdir={tmp_path / 'run'}", "--config.iterations=1", "--config.reward.high=8",
          "--config.reward.low=2"]
  done = forked.run([*shlex.split(shown), *more], FOLDER.parent.parent)
  assert done.returncode == 0, done.stderr[-2000:]
  lines = (tmp_path / "run/rollouts/iteration_00001.jsonl").read_text().splitlines()
  for row in map(json.loads, lines):
    parts, source = row["components"], len(row["prompt"])
    assert parts["ratio"] == pytest.approx(len(row["completion"]) / source)
    band = reward.band_of(source, 2, 8)
    assert parts["length"] == pytest.approx(reward.band_length_reward(parts["ratio"], *band))
    assert row["reward"] == pytest.approx(parts["task"] + parts["length"])


def test_the_task_takes_its_content_at_every_length_of_the_band():
  load_plugins((str(FOLDER / "task.py"),))
  task = make_task(TaskConfig(name="filler_copy"), seed=0, batch_size=64)
  ratios = []
  for problem in task.batch(0):
    source, letters = problem.prompt, problem.answer
    assert 16 <= len(source) <= 20 and source.replace(".", "") == letters and ".." not in source
    fitting = [count for count in range(len(source) + 1)
               if 0.8 <= (len(letters) + count) / len(source) <= 0.9]
    assert fitting, "no number of dots fits the band"
    for text, right in ((letters, True), (source, True), (letters + "." * fitting[0], True),
                        (letters[:-1], False), (letters[::-1], False)):
      assert task.reward(problem, text).correct is right
    assert task.reward(problem, problem.demonstration).correct
    ratios.append(len(problem.demonstration) / len(source))
  assert np.mean(ratios) > 0.9, "the demonstrations already fit the band"


def test_a_run_passes_by_all_three_numbers():
  sweep = loaded("sweep")
  good = {"ratio": 0.85, "inside": 0.9, "accuracy": 0.95}
  assert sweep.passes(good)
  for name, value in (("ratio", 0.91), ("ratio", 0.79), ("inside", 0.89), ("accuracy", 0.94)):
    assert not sweep.passes(good | {name: value})
