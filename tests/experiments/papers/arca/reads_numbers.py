"""What the passes over rows read of the advantage; tests/test_config_reads.py calls it."""

import jax

from jaxrl_llm.wiring import setup


def call(tiny):
  cfg = setup.resolve(tiny(advantage={"name": "arca"}, parameters={"train": "lora"}))
  setup.build(cfg, jax.devices()[:1]).sampler.close()
