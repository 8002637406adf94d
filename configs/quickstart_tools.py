r"""Teaches a small policy by RL to call a calculator for products of three-digit numbers.

  python experiments/main.py --config=configs/quickstart_tools.py:ctpo --workdir=runs/tools_ctpo
  python experiments/main.py --config=configs/quickstart_tools.py:otb --config.seed=1 \
    --workdir=runs/tools_otb

The policy is too small to work out the products itself. The warm start imitates demonstrations, of
which 30 % call the tool and the others state the product outright.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "ctpo"):
  config = base_config()
  config.iterations = 40
  config.model.update(vocab_size=21, width=128, num_layers=4, num_heads=4, num_kv_heads=2,
                      head_dim=32, mlp_width=384)
  config.plugins = ("experiments.tasks.tool_arithmetic",)
  config.task.update(name="tool_arithmetic", worked_share=0.3, heldout_problems=128)
  config.task.tool_arithmetic = {"digits": 3}
  config.rollout.update(prompts=16, group_size=8, max_prompt_tokens=7, max_new_tokens=26, window=13)
  config.rollout.update(slots=128, chunk=13, max_turns=2, max_tool_tokens=8, tool_chunks=0)
  config.updates.update(optimizer_batches=4, micro_batches=2)
  config.optimizer.update(learning_rate=5e-5, b2=0.95)
  config.warm_start.update(steps=600, batch_size=64, micro_batches=4, learning_rate=3e-3)
  config.evaluation.every = 10
  return presets.apply(config, preset)
