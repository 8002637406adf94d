"""OCC on the task of its table: chains of four digits.

  python experiments/main.py --config=experiments/papers/occ/config.py --workdir=runs/occ
  python experiments/main.py --config=experiments/papers/occ/config.py:mtp_detach --workdir=runs/ce

Any other config takes it by `--config.plugins=experiments.papers.occ --config.term.name=occ`.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(term: str = "occ"):
  config = base_config()
  config.plugins = ("experiments.papers.occ",)
  config.iterations = 40
  config.model.update(vocab_size=17, width=64, num_layers=2, num_heads=4, num_kv_heads=2,
                      head_dim=16, mlp_width=192)
  config.task.update(name="modular_chain", num_terms=4, worked_share=0.3, heldout_problems=256)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=7, max_new_tokens=18, window=18)
  config.updates.update(optimizer_batches=4)
  config.optimizer.update(learning_rate=2e-4, b2=0.95)
  config.warm_start.update(steps=500, batch_size=64, learning_rate=3e-3)
  config.term.name = term
  return presets.apply(config, "grpo")
