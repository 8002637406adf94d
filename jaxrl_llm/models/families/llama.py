"""Llama 3.x, and what has its shape: SmolLM2, among others."""

from jaxrl_llm.models.families.family import GGUF, Family
from jaxrl_llm.registry import FAMILIES


@FAMILIES.register("llama")
class Llama(Family):
  """As `Family`."""

  architecture = "LlamaForCausalLM"
  gguf, gguf_turned = GGUF, True
