"""toy.py: its page says what its results say, and the learnt policy what the page claims."""

import json
from pathlib import Path

import experiment_files
import numpy as np
import pytest

from experiments.papers.portfolio import simulation, verdicts
from jaxrl_llm.config import from_dict, load_plugins
from jaxrl_llm.wiring import setup

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "portfolio"
toy = experiment_files.load(FOLDER / "toy.py")


def committed() -> list[dict]:
  return [json.loads((FOLDER / "results" / f"seed{seed}.json").read_text()) for seed in toy.SEEDS]


def lacks(result: dict, policy: dict) -> list[str]:
  """Returns what a policy has not learnt: to keep what informs, to flip what misleads, or regret
  below that of an even draw and of keeping every score."""
  baselines = result["baselines"]
  return [name for name in ("informative_kept", "adversarial_flipped") if policy[name] < 0.75] + [
      name for name in ("evenly drawn (before)", "every score kept")
      if policy["regret"] >= baselines[name]["regret"]]


def test_every_seed_keeps_what_informs_and_flips_what_misleads():
  for result in committed():
    assert lacks(result, result["policies"]["grpo"]) == []
    assert lacks(result, result["baselines"]["every score kept"]) == [
        "adversarial_flipped", "every score kept"], "a policy that keeps every score is noticed"


def test_baselines_by_hand():
  rewards = np.zeros(9)
  rewards[verdicts.column_of("KF", 2)] = 0.01
  rewards[verdicts.column_of("ZZ", 2)] = -0.01
  day = verdicts.Day("x", "+1-2ab", rewards, rewards, "ia", True)
  noise = verdicts.Day("y", "+1-2ab", rewards, rewards, "in", True)
  found = toy.baselines([day, noise])
  assert found["every score kept"]["regret"] == pytest.approx(1.0)
  assert found["every score zeroed"]["regret"] == pytest.approx(2.0)
  assert found["oracle: by the kind"]["regret"] == pytest.approx(0.5)
  assert found["oracle: by the kind"]["noise_zeroed"] == 1.0
  assert found["every score kept"]["adversarial_flipped"] == 0.0


@pytest.mark.parametrize("seed", toy.SEEDS)
def test_every_training_is_a_valid_config(seed):
  cfg = from_dict(toy.config_of(seed))
  load_plugins(cfg.plugins)
  assert setup.resolve(cfg).task.market == seed == cfg.seed


def test_the_oracle_s_verdicts_leave_what_is_true():
  for kind, letter in simulation.RIGHT.items():
    assert verdicts.factors(letter)[0] == simulation.SIGNS[kind]
