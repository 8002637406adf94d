"""A run of the table; its baseline is set beside it.

  python experiments/main.py --config=experiments/baselines/config.py \
    --config.advantage.name=otb --workdir=runs/baselines_one

The quickstart's task and policy on fresh rollouts, with one optimizer step for each batch, so that
no ratio differs from 1 and the baseline alone makes the difference.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config():
  config = base_config()
  config.iterations = 40
  config.model.update(vocab_size=22, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192)
  config.task.update(name="recurrence", steps=31, heldout_problems=128, slips=0.001, careless=0.6,
                     misread=2, mistake_contexts=(2, 2, 4), mistake_rates=(0.8, 0.4, 0.1))
  config.rollout.update(prompts=16, group_size=16, max_prompt_tokens=4, max_new_tokens=32,
                        min_new_tokens=31, window=16)
  config.updates.update(optimizer_batches=1, micro_batches=1)
  config.optimizer.update(learning_rate=1e-3, b2=0.95)
  config.warm_start.update(steps=500, batch_size=64, micro_batches=1, learning_rate=3e-3)
  config.evaluation.update(every=5, samples=8)
  return presets.apply(config, "rloo")
