"""experiments/length_bands: the reward's published values, and its task."""

import math
from pathlib import Path

import experiment_files
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


@pytest.mark.parametrize("wrong", ["nearest bound", "no upper bound", "same band",
                                   "lower bound alone"])
def test_wrong_rewards_do_not_give_them(reward, wrong):
  band, paid = reward.band_of, reward.band_length_reward
  if wrong == "nearest bound":
    paid = lambda ratio, low, high: reward.band_length_reward(ratio, low, high, mode="nearest")
  elif wrong == "no upper bound":
    paid = lambda ratio, low, high: reward.band_length_reward(ratio, low, math.inf)
  elif wrong == "same band":
    band = lambda source, low, high: (low, high)
  else:
    band = lambda source, low, high: (reward.band_of(source, low, high)[0], high)
  assert not golden(band, paid)


def test_as_a_registered_reward():
  load_plugins((str(FOLDER / "reward.py"),))
  problem = Problem("x" * 8, "")
  for numbers, paid, inside in (({}, 1.0, 1.0), ({"wider": False}, math.exp(-100 * 0.15**2), 0.0),
                                ({"low": 0.7, "high": 0.74, "wider": False, "mode": "nearest"},
                                 math.exp(-100 * 0.01**2), 0.0)):
    task = RewardedTask(None, RewardConfig("band_length", length_weight=2.0, **numbers))
    found, = task.rewards([problem], ["y" * 6])
    assert found.value == pytest.approx(2 * paid)
    assert dict(found.components) == pytest.approx({"length": paid, "ratio": 0.75,
                                                    "inside": inside})
  found, = task.rewards([Problem("", "")], ["y"])
  assert "empty prompt" in found.unscored_reason


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
