"""The earlier quickstart: chains of digits. RL learns one decision there, the first token.

  python experiments/main.py --config=configs/chain.py --workdir=runs/chain
  python experiments/main.py --config=configs/chain.py:ctpo --config.seed=1 --workdir=runs/ctpo

The warm start already works chains out; RL makes it begin with ":" (experiments/decisions). Earlier
tables are of this task.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "grpo"):
  config = base_config()
  config.iterations = 60
  config.model.update(vocab_size=17, width=128, num_layers=4, num_heads=4, num_kv_heads=2,
                      head_dim=32, mlp_width=384)
  config.task.update(name="modular_chain", num_terms=5, worked_share=0.3, heldout_problems=256)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=9, max_new_tokens=24, window=12)
  config.updates.update(optimizer_batches=4, micro_batches=4)
  config.optimizer.update(learning_rate=5e-5, b2=0.95)
  config.warm_start.update(steps=1000, batch_size=64, micro_batches=4, learning_rate=3e-3)
  config.evaluation.every = 5
  return presets.apply(config, preset)
