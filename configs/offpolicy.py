"""The quickstart's sibling in which the choice of the ratio matters: its rollouts are old.

  python experiments/main.py --config=configs/offpolicy.py --workdir=runs/offpolicy
  python experiments/main.py --config=configs/offpolicy.py:ctpo --workdir=runs/offpolicy_ctpo
  python experiments/main.py --config=configs/offpolicy.py:minpro,128 --workdir=runs/offpolicy_long

The second argument is the tokens of a completion, its end included: 32, 128 or 256. Rollouts come
from the policy of eight iterations before. Mistakes are as many in a completion at each length, so
that longer ones have them at fewer of their steps; there, reading of careless notation is always
right, and the warm start has more steps: with few mistakes the sum is found later. At 256 tokens
give --config.warm_start.steps=1000: on seed 0, the only one that was tried, it learned the sum with
that schedule and not with the longer one of 1,500 below.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import ConfigError, base_config

# Options of the task, and steps and learning rate of the warm start, by tokens of a completion.
KINDS = {"mistake_contexts": (1, 2, 4), "misread": 0}
LENGTHS = {
    32: ({"mistake_contexts": (2, 2, 4), "mistake_rates": (0.8, 0.4, 0.1), "misread": 2,
          "slips": 0.001}, 500, 3e-3),
    128: ({**KINDS, "mistake_rates": (0.6, 0.1, 0.03), "slips": 0.0005}, 1500, 2e-3),
    256: ({**KINDS, "mistake_rates": (0.3, 0.05, 0.015), "slips": 0.00025}, 1500, 2e-3),
}


def get_config(arguments: str = "grpo"):
  preset, _, length = arguments.partition(",")
  tokens = int(length or 32)
  if tokens not in LENGTHS:
    raise ConfigError(f"configs/offpolicy.py:{arguments}: {tokens} tokens; allowed are "
                      f"{', '.join(map(str, LENGTHS))}. Fix: one of them behind the comma.")
  options, steps, learning_rate = LENGTHS[tokens]
  config = base_config()
  config.iterations = 60
  config.model.update(vocab_size=22, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192)
  config.task.update(name="recurrence", steps=tokens - 1, heldout_problems=256, careless=0.6,
                     context=2, **options)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=4, max_new_tokens=tokens,
                        min_new_tokens=tokens - 1, window=16 if tokens == 32 else 32)
  config.updates.update(optimizer_batches=4, micro_batches=1, staleness=8)
  config.optimizer.update(learning_rate=3e-4, b2=0.95)
  config.warm_start.update(steps=steps, batch_size=64, micro_batches=1,
                           learning_rate=learning_rate)
  config.evaluation.update(every=5, samples=8)
  return presets.apply(config, preset or "grpo")
