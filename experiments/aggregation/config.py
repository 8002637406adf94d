"""A run of the table: configs/offpolicy.py with completions of 12 to 32 tokens (task.py), on fresh
rollouts.

  python experiments/main.py --config=experiments/aggregation/config.py \
    --config.aggregation.name=balanced --workdir=runs/aggregation_one
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config():
  config = base_config()
  config.plugins = ("experiments/aggregation/task.py",)
  config.iterations = 30
  config.model.update(vocab_size=22, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192)
  config.task.update(name="ending_recurrence", steps=31, shortest=12, heldout_problems=64,
                     careless=0.6, mistake_rates=(0.8, 0.4, 0.1), mistake_contexts=(3, 3, 6),
                     context=2, misread=3, slips=0.001)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=4, max_new_tokens=32,
                        min_new_tokens=12, window=16)
  config.updates.update(optimizer_batches=4, micro_batches=1)
  config.optimizer.update(learning_rate=3e-4, b2=0.95)
  config.warm_start.update(steps=500, batch_size=64, micro_batches=1, learning_rate=3e-3)
  config.evaluation.update(every=5, samples=8)
  return presets.apply(config, "grpo")
