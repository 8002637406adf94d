"""ARCA on adapters, on the task of its table: chains of three digits.

  python experiments/main.py --config=experiments/papers/arca/config.py --workdir=runs/arca

Any other config takes it by `--config.plugins=experiments.papers.arca --config.advantage.name=arca
--config.parameters.train=lora`.
"""

from jaxrl_llm.config import base_config
from jaxrl_llm.presets import recipe

SUPERVISED = {"steps": 1000, "batch_size": 64, "micro_batches": 4, "learning_rate": 3e-3}


def sizes():
  """Returns the table's task, network and lengths, with no method chosen."""
  config = base_config()
  config.plugins = ("experiments.papers.arca",)
  config.iterations = 40
  config.model.update(vocab_size=17, width=128, num_layers=4, num_heads=4, num_kv_heads=2,
                      head_dim=32, mlp_width=384)
  config.task.update(name="modular_chain", num_terms=3, worked_share=0.3, heldout_problems=256)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=5, max_new_tokens=16, window=8)
  config.updates.update(optimizer_batches=4, micro_batches=4)
  config.optimizer.update(learning_rate=3e-4)
  config.evaluation.every = 5
  return config


def get_config():
  config = sizes()
  config.warm_start.update(SUPERVISED)
  config.update_from_flattened_dict(recipe("ppo", "arca", "token", parameters__train="lora"))
  return config
