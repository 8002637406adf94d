"""A config small enough to try a plugin with: squares from problems.jsonl, seconds on a laptop.

`config.py:own` leaves the problems to a task of your own.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(problems: str = "squares"):
  config = base_config()
  config.iterations = 2
  config.model.update(vocab_size=258, width=64, num_layers=2, num_heads=2, num_kv_heads=1,
                      head_dim=32, mlp_width=128)
  config.task.heldout_problems = 8
  if problems == "squares":
    config.task.name = "dataset"
    config.task.data.update(path="experiments/extend/problems.jsonl", verifier="numeric",
                            demonstration_column="demonstration")
  config.rollout.update(prompts=4, group_size=4, max_prompt_tokens=4, max_new_tokens=20, window=10)
  config.updates.update(optimizer_batches=2)
  config.warm_start.update(steps=150, batch_size=16, learning_rate=3e-3)
  config.evaluation.every = 1
  return presets.apply(config, "grpo")
