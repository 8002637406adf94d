"""The smallest runs that pass through every stage, as a config file: small.py:<kind>.

Kinds: plain (chains of digits), data (a file of problems), turns (a calculator), pretrained
(chains again; the checkpoint sets the shapes).
"""

from jaxrl_llm.config import base_config


def get_config(kind: str = "plain"):
  config = base_config()
  config.iterations = 2
  if kind != "pretrained":
    config.model.update(vocab_size=17, width=16, num_layers=1, num_heads=1, num_kv_heads=1,
                        head_dim=8, mlp_width=16)
  config.rollout.update(prompts=4, group_size=2, max_prompt_tokens=4, max_new_tokens=6, window=6)
  config.updates.optimizer_batches = 1
  config.evaluation.every = 1
  config.checkpoint.every = 1
  config.writer.name = "none"
  if kind in ("plain", "pretrained"):
    config.task.update(num_terms=2, heldout_problems=4)
  elif kind == "data":
    config.model.vocab_size = 258
    config.task.update(name="dataset", heldout_problems=2)
    config.task.data.update(verifier="numeric")
    config.rollout.max_prompt_tokens = 24
  elif kind == "turns":
    config.model.vocab_size = 21
    config.plugins = ("experiments.tasks.tool_arithmetic",)
    config.task.update(name="tool_arithmetic", heldout_problems=4)
    config.rollout.update(max_prompt_tokens=7, max_new_tokens=16, window=16, max_turns=2, slots=8,
                          max_tool_tokens=8)
  return config
