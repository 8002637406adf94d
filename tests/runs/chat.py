"""A run on files of public formats, as a config file for the real commands; `formats.py` writes the
files.

Give --config.pretrained=<checkpoint directory> and --config.task.data.path=<GSM8K lines>.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config

ITERATIONS, HELDOUT = 10, 16


def get_config(preset: str = "ctpo"):
  config = base_config()
  config.iterations = ITERATIONS
  config.task.update(name="dataset", heldout_problems=HELDOUT)
  config.task.data.mapping = "gsm8k"
  config.task.prompt.update(style="chat", suffix=" Think.", arguments='{"enable_thinking": false}')
  config.rollout.update(prompts=8, group_size=4, max_prompt_tokens=40, max_new_tokens=16, window=16)
  config.updates.optimizer_batches = 2
  config.optimizer.learning_rate = 1e-3
  config.warm_start.update(steps=150, batch_size=16, learning_rate=1e-2)
  config.evaluation.every = config.checkpoint.every = 5
  return presets.apply(config, preset)
