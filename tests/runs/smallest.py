"""The smallest run within a test's process: its config, its parts, its first parameters."""

import jax

from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.models.trainable import split
from jaxrl_llm.presets import apply
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.warm_start import Start


def config(preset: str | None = None, **overrides):
  """Returns the ConfigDict; `overrides` are its keys, such as `updates.staleness`."""
  values = base_config()
  values.model.update(vocab_size=17, width=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8,
                      mlp_width=8)
  values.task.update(num_terms=2, worked_share=0.0, heldout_problems=8)
  values.rollout.update(prompts=4, group_size=4, max_prompt_tokens=4, max_new_tokens=4, window=4)
  values.updates.optimizer_batches = 2
  values.optimizer.learning_rate = 1e-2
  if preset is not None:
    apply(values, preset)
  values.update_from_flattened_dict(overrides)
  return values


def resolved(preset: str | None = None, **overrides):
  return setup.resolve(from_dict(config(preset, **overrides)))


def built(devices: int = 1, preset: str | None = None, **overrides) -> setup.Built:
  return setup.build(resolved(preset, **overrides), jax.devices()[:devices])


def start_of(parts: setup.Built) -> Start:
  params = jax.jit(parts.learner.model.init, out_shardings=None)(jax.random.key(0))
  return Start(*split(params, parts.cfg.parameters, jax.random.key(1)))
