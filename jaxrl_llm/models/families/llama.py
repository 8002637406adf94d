"""Llama 3.x, and what has its shape: SmolLM2, among others."""

from jaxrl_llm.models.families import register
from jaxrl_llm.models.families.family import GGUF, Family


@register("llama")
class Llama(Family):
  """As `Family`."""

  architecture = "LlamaForCausalLM"
  gguf, gguf_turned = GGUF, True
