"""Teaches a small policy by RL to stop making mistakes in a recurrence of digits, on a laptop.

  python experiments/main.py --config=configs/quickstart.py --workdir=runs/quickstart
  python experiments/main.py --config=configs/quickstart.py:ctpo --config.seed=1 --workdir=runs/ctpo

Every value is the sum of the last one and the one four back, modulo 10, as digit or letter:
3719 -> 2 5 g 5 ... for 31 values. The warm start imitates demonstrations that go wrong in several
ways, anywhere in a completion; only completions without any mistake are rewarded.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "grpo"):
  config = base_config()
  config.iterations = 40
  config.model.update(vocab_size=22, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192)
  config.task.update(name="recurrence", steps=31, heldout_problems=256, slips=0.001, careless=0.6,
                     misread=2, mistake_contexts=(2, 2, 4), mistake_rates=(0.8, 0.4, 0.1))
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=4, max_new_tokens=32,
                        min_new_tokens=31, window=16)
  config.updates.update(optimizer_batches=4, micro_batches=1)
  config.optimizer.update(learning_rate=3e-4, b2=0.95)
  config.warm_start.update(steps=500, batch_size=64, micro_batches=1, learning_rate=3e-3)
  config.evaluation.update(every=5, samples=8)
  return presets.apply(config, preset)
