"""The quickstart's sibling in which the choice of the ratio matters: its rollouts are old.

  python experiments/main.py --config=configs/offpolicy.py --workdir=runs/offpolicy
  python experiments/main.py --config=configs/offpolicy.py:ctpo --workdir=runs/offpolicy_ctpo
  python experiments/main.py --config=configs/offpolicy.py:minpro,128 --workdir=runs/offpolicy_long

The second argument is the tokens of a completion, its end included: 32, 128 or 256. Rollouts come
from the policy of eight iterations before. Mistakes are as many in a completion at each length; to
that end, longer completions have more contexts of which fewer go wrong (task.context=3).
"""

from jaxrl_llm import presets
from jaxrl_llm.config import ConfigError, base_config

SHORT = {"context": 2, "mistake_contexts": (2, 2, 4), "misread": 2, "slips": 0.001}
LENGTHS = {
    32: SHORT,
    128: {"context": 3, "mistake_contexts": (5, 8, 16), "misread": 5, "slips": 0.0002},
    256: {"context": 3, "mistake_contexts": (3, 4, 8), "misread": 3, "slips": 0.0001},
}


def get_config(arguments: str = "grpo"):
  preset, _, length = arguments.partition(",")
  tokens = int(length or 32)
  if tokens not in LENGTHS:
    raise ConfigError(f"configs/offpolicy.py:{arguments}: {tokens} tokens; allowed are "
                      f"{', '.join(map(str, LENGTHS))}. Fix: one of them behind the comma.")
  config = base_config()
  config.iterations = 60
  config.model.update(vocab_size=22, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192)
  config.task.update(name="recurrence", steps=tokens - 1, heldout_problems=256, careless=0.6,
                     mistake_rates=(0.8, 0.4, 0.1), **LENGTHS[tokens])
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=4, max_new_tokens=tokens,
                        min_new_tokens=tokens - 1, window=16 if tokens == 32 else 32)
  config.updates.update(optimizer_batches=4, micro_batches=1, staleness=8)
  config.optimizer.update(learning_rate=3e-4, b2=0.95)
  config.warm_start.update(steps=500, batch_size=64, micro_batches=1, learning_rate=3e-3)
  config.evaluation.update(every=5, samples=8)
  return presets.apply(config, preset or "grpo")
