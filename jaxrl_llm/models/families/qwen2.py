"""Qwen2 and Qwen2.5: biases of queries, keys and values."""

from jaxrl_llm.models.families.family import GGUF, TRAITS, Family
from jaxrl_llm.registry import FAMILIES


@FAMILIES.register("qwen2")
class Qwen2(Family):
  """As Llama, with those biases."""

  architecture = "Qwen2ForCausalLM"
  traits = TRAITS | {"qkv_bias": (True,), "out_bias": (False,)}
  bias_key = False
  gguf = GGUF

  def unsupported(self, hf):
    bias = getattr(hf, "attention_bias", False)
    return [*super().unsupported(hf),
            (bias, "attention_bias = true (supported: of llama and qwen3)")]

  def options(self, hf):
    return super().options(hf) | {"qkv_bias": True}
