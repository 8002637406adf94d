"""A run of the table: a recurrence some of whose values the policy must ask of a tool
(recurrence.py), on rollouts that are eight iterations old.

  python experiments/main.py --config=experiments/tools/config.py:ctpo --workdir=runs/tools_one

Ratios are to the policy that sampled.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "grpo"):
  config = base_config()
  config.plugins = ("experiments/tools/recurrence.py",)
  config.iterations = 40
  config.model.update(vocab_size=13, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192)
  config.task.update(name="tool_recurrence", steps=31, heldout_problems=64)
  config.environment.name = "hidden_digits"
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=4, max_new_tokens=33,
                        min_new_tokens=31, window=16)
  config.rollout.update(slots=256, chunk=3, max_turns=18, max_tool_tokens=1, tool_chunks=0)
  config.updates.update(optimizer_batches=4, micro_batches=1, staleness=8)
  config.optimizer.update(learning_rate=3e-4, b2=0.95)
  config.warm_start.update(steps=500, batch_size=64, micro_batches=1, learning_rate=3e-3)
  config.evaluation.update(every=5, samples=8)
  config = presets.apply(config, preset)
  config.updates.anchor = "behavior"
  return config
