"""Mistral: Llama with a sliding window in all layers, or in none, as newer models have it."""

from jaxrl_llm.models.families.family import TRAITS, Family
from jaxrl_llm.registry import FAMILIES


@FAMILIES.register("mistral")
class Mistral(Family):
  """As Llama, with that window and without biases."""

  architecture = "MistralForCausalLM"
  traits = TRAITS | {"qkv_bias": (False,), "out_bias": (False,), "window": None}
  bias_key = False

  def options(self, hf):
    return super().options(hf) | {"window": hf.sliding_window or 0}

  def keys(self, cfg, rope):
    return super().keys(cfg, rope) | {"sliding_window": cfg.window or None}
