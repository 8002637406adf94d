"""PIPO on the task of its table, chains of digits, with the recipe's token mean.

  python experiments/main.py --config=experiments/papers/pipo/config.py --workdir=runs/pipo

Any other config takes it by `--config.plugins=experiments.papers.pipo
--config.transform.name=pipo`.
"""

from jaxrl_llm.config import base_config
from jaxrl_llm.presets import recipe


def get_config():
  config = base_config()
  config.plugins = ("experiments.papers.pipo",)
  config.iterations = 60
  config.model.update(vocab_size=17, width=128, num_layers=4, num_heads=4, num_kv_heads=2,
                      head_dim=32, mlp_width=384)
  config.task.update(name="modular_chain", num_terms=5, worked_share=0.3, heldout_problems=256)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=9, max_new_tokens=24, window=12)
  config.updates.update(optimizer_batches=4, micro_batches=4)
  config.optimizer.update(learning_rate=5e-5, b2=0.95)
  config.warm_start.update(steps=1000, batch_size=64, micro_batches=4, learning_rate=3e-3)
  config.evaluation.every = 3
  config.update_from_flattened_dict(recipe("ppo", "grpo", "token", transform__name="pipo"))
  return config
