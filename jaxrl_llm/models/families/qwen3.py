"""Qwen3: queries and keys are normalised, head by head."""

from jaxrl_llm.models.families.family import GGUF, TRAITS, Family
from jaxrl_llm.registry import FAMILIES


@FAMILIES.register("qwen3")
class Qwen3(Family):
  """As Llama, with that norm."""

  architecture = "Qwen3ForCausalLM"
  traits = TRAITS | {"qk_norm": (True,)}
  gguf = GGUF

  def options(self, hf):
    return super().options(hf) | {"qk_norm": True}
