"""A small run to plan, and the same on real CPU devices."""

import dataclasses

from experiments.planning.shapes import with_shapes
from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.wiring import setup


def get_config():
  config = base_config()
  config.rollout.update(prompts=8, group_size=4, max_new_tokens=16, max_prompt_tokens=16, window=8)
  config.updates.update(optimizer_batches=2, micro_batches=2)
  config.model.update(num_layers=2, width=64, mlp_width=128, scan_layers=True)
  config.mesh.fsdp = 4
  return config


def ready(**changes):
  """The resolved config; `changes` by section, such as `mesh=dict(fsdp=8)`."""
  config = get_config()
  for section, keys in changes.items():
    config[section].update(keys)
  cfg = setup.resolve(from_dict(config))
  return dataclasses.replace(cfg, model=with_shapes(cfg.model, cfg.pretrained))
