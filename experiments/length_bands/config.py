"""Copies whose length is to fit a band, small enough for a laptop: `reward.name=task,band_length`.

  python experiments/main.py --config=experiments/length_bands/config.py --workdir=runs/length_bands
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "grpo"):
  config = base_config()
  config.iterations = 150
  config.plugins = ("experiments/length_bands/reward.py", "experiments/length_bands/task.py")
  config.model.update(vocab_size=29, width=64, num_layers=2, num_heads=4, num_kv_heads=2,
                      head_dim=16, mlp_width=192)
  config.task.update(name="filler_copy", heldout_problems=256)
  config.reward.name = "task,band_length"
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=20, max_new_tokens=24,
                        window=12)
  config.updates.update(optimizer_batches=4)
  config.optimizer.update(learning_rate=3e-4, b2=0.95)
  config.warm_start.update(steps=300, batch_size=64, learning_rate=3e-3)
  config.evaluation.every = 25
  return presets.apply(config, preset)
