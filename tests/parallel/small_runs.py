"""Small runs of one kind each, as a config file for the real command: small_runs.py:<kind>.

They hardly learn: losses of two divisions of the same rows agree only as long as no rounding has
changed a token.
"""

import runpy
from pathlib import Path

KINDS = ("plain", "slots", "tools", "dynamic", "overlap", "experts", "adapters", "dataset",
         "shaped")
ITERATIONS = 5


def get_config(kind: str = "plain"):
  base = {"tools": "tiny_tools", "dataset": "chat"}.get(kind, "tiny")
  path = Path(__file__).parents[1] / "runs" / f"{base}.py"
  config = runpy.run_path(str(path))["get_config"]()
  config.iterations = config.evaluation.every = config.checkpoint.every = ITERATIONS
  config.optimizer.learning_rate = 1e-4
  config.warm_start.steps = 40
  config.rollout.update(prompts=16, group_size=4)
  if kind == "slots":
    config.rollout.update(slots=32, chunk=3)
  elif kind == "in_flight":  # other batches in each number of processes, so none of KINDS
    config.updates.in_flight = True
    config.rollout.update(slots=64, chunk=2, max_new_tokens=12, window=12)
  elif kind == "dynamic":
    config.dynamic_sampling.update(enabled=True, max_draws=20)
  elif kind == "overlap":
    config.updates.update(staleness=1, overlap=True)
  elif kind == "shaped":  # by a rank among the groups of all processes
    config.shaping.update(name="grpo_lambda", alpha=0.9)
  elif kind == "experts":
    config.model.update(num_experts=4, experts_per_token=2, expert_width=8)
  elif kind == "adapters":
    config.parameters.update(train="lora", lora_rank=4)
    config.optimizer.learning_rate = 1e-2  # of adapters, which begin at 0
  return config
