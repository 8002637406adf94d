"""A run of the table; its baseline is set beside it.

  python experiments/main.py --config=experiments/baselines/config.py \
    --config.advantage.name=otb --workdir=runs/baselines_one

The quickstart's task with 4 terms and a policy of 0.1 M parameters, so that gradients of thousands
of rows can be taken one by one.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config():
  config = base_config()
  config.iterations = 60
  config.model.update(vocab_size=17, width=64, num_layers=3, num_heads=4, num_kv_heads=2,
                      head_dim=16, mlp_width=192)
  config.task.update(name="modular_chain", num_terms=4, worked_share=0.3, heldout_problems=256)
  config.rollout.update(prompts=16, group_size=16, max_prompt_tokens=7, max_new_tokens=20,
                        window=10)
  config.updates.update(optimizer_batches=1, micro_batches=4)
  config.optimizer.update(learning_rate=3e-4, b2=0.95)
  config.warm_start.update(steps=1000, batch_size=64, learning_rate=3e-3)
  config.evaluation.every = 5
  return presets.apply(config, "rloo")
