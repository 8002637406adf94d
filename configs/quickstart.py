"""A small policy learns three-term addition by RL on a laptop.

  python experiments/main.py --config=configs/quickstart.py --workdir=runs/quickstart
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "ctpo"):
  config = base_config()
  config.iterations = 60
  config.model.update(vocab_size=16, width=128, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=32, mlp_width=384)
  config.task.update(name="chain_addition", num_terms=3, max_term=99, heldout_problems=256)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=12, max_new_tokens=16, window=16)
  config.optimizer.update(learning_rate=3e-4, b2=0.95)
  config.warm_start.update(steps=800, batch_size=64, learning_rate=2e-3)
  return presets.apply(config, preset)
