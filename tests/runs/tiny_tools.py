"""The smallest run in which the policy calls the quickstart's tool and every update moves it."""

import runpy
from pathlib import Path

HERE = Path(__file__).parent
ITERATIONS = 4


def get_config(preset: str = "ctpo"):
  runpy.run_path(str(HERE / "tiny.py"))["hold_on"]()
  quickstart = runpy.run_path(str(HERE.parents[1] / "configs" / "quickstart_tools.py"))
  config = quickstart["get_config"](preset)
  config.iterations = ITERATIONS
  config.plugins = ("tests/runs/sandboxed_calculator.py",)
  config.model.update(width=32, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16,
                      mlp_width=32)
  config.task.update(worked_share=0.8, heldout_problems=8)
  config.task.tool_arithmetic.digits = 2
  config.rollout.update(prompts=8, group_size=4, max_prompt_tokens=5, max_new_tokens=20, window=40,
                        slots=32, chunk=4, tool_chunks=1)
  config.updates.update(optimizer_batches=2, micro_batches=1)
  config.optimizer.learning_rate = 1e-3
  config.warm_start.update(steps=100, batch_size=16, micro_batches=1, learning_rate=2e-2)
  config.evaluation.every = 2
  config.checkpoint.every = 1
  return config
