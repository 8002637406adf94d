"""A run of the table: `config.py:longer`, `config.py:alike` or `config.py:shorter`.

  python experiments/main.py --config=experiments/aggregation/config.py:shorter \
    --workdir=runs/aggregation_one

The name says how long answers that work the chain out are, compared with guesses.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config

GUESS_PADDING = {"longer": 0, "alike": 12, "shorter": 20}


def get_config(worked: str = "longer"):
  config = base_config()
  config.plugins = ("experiments/aggregation/task.py",)
  config.iterations = 50
  config.model.update(vocab_size=17, width=128, num_layers=4, num_heads=4, num_kv_heads=2,
                      head_dim=32, mlp_width=384)
  config.task.update(name="padded_chain", num_terms=4, worked_share=0.4,
                     guess_padding=GUESS_PADDING[worked], heldout_problems=256)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=7, max_new_tokens=32, window=8)
  config.updates.update(optimizer_batches=4, micro_batches=4)
  config.optimizer.update(learning_rate=5e-5, b2=0.95)
  config.warm_start.update(steps=1500, batch_size=64, micro_batches=4, learning_rate=3e-3)
  config.evaluation.every = 5
  return presets.apply(config, "grpo")
