"""SmolLM2's adapters for a few iterations, as a config file for the real command.

The reward is the share of digits in a completion: it differs within a group from the start.
"""

import runpy
from pathlib import Path

from jaxrl_llm.config import base_config

HERE = Path(__file__).parent
ITERATIONS = 3


def get_config():
  runpy.run_path(str(HERE / "tiny.py"))["hold_on"]()
  recipe = runpy.run_path(str(HERE.parents[1] / "configs" / "smollm2_135m.py"))
  config = recipe["get_config"]("lora")
  config.iterations = ITERATIONS
  config.plugins = (*config.plugins, "tests/runs/digit_reward.py")
  config.reward.name = "digits"
  config.warm_start = base_config().warm_start  # none
  config.task.heldout_problems = 2
  config.model.scan_layers = True  # one layer to compile, not thirty
  config.rollout.update(prompts=2, group_size=4, max_new_tokens=8, window=8)
  config.evaluation.update(every=3, samples=0)
  config.checkpoint.every = 1
  return config
