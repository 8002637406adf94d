"""experiments/papers/arca: its page says what its results say, and its trainings are valid."""

from pathlib import Path

import experiment_files
import numpy as np
import pytest

from experiments.tables_lib import seed_results
from jaxrl_llm.config import from_dict
from jaxrl_llm.wiring import setup

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "experiments" / "papers" / "arca"
toy = experiment_files.load(FOLDER / "toy.py")


def test_what_the_page_counts():
  """Where GRPO learns, ARCA learns later or not at all."""
  learnt, later, never = 0, 0, 0
  for one in seed_results.load(FOLDER, toy.SEEDS):
    for methods in one.values():
      grpo, arca = (np.array(methods[name]["accuracy"]) > toy.LEARNT for name in ("GRPO", "ARCA"))
      if grpo.any():
        learnt += 1
        never += not arca.any()
        later += arca.any() and np.argmax(arca) > np.argmax(grpo)
  assert (learnt, later, never) == (5, 3, 2)


@pytest.mark.parametrize("name", toy.METHODS)
def test_every_training_is_a_valid_config(name):
  config = toy.config(0, advantage=toy.METHODS[name], parameters={"train": "lora"})
  config.kl.coef = 1e-6
  cfg = setup.resolve(from_dict(config))
  assert cfg.advantage.name == toy.METHODS[name]["name"]
