"""OLMo 2: norms after attention and MLP, and a norm of all queries and of all keys of a token.

Source: arXiv 2501.00656, section 2.
"""

from jaxrl_llm.models.families.family import LAYER, PROJECTION_BIAS, TRAITS, VECTOR, Family
from jaxrl_llm.registry import FAMILIES


@FAMILIES.register("olmo2")
class Olmo2(Family):
  """As Llama, with those norms."""

  architecture = "Olmo2ForCausalLM"
  traits = TRAITS | {"norms": ("after",), "qk_norm": (True,), "wide_qk_norm": (True,)}
  layer = LAYER | {
      "attention_out_norm/scale": ("post_attention_layernorm.weight", VECTOR),
      "mlp_out_norm/scale": ("post_feedforward_layernorm.weight", VECTOR),
      "attention/query_norm/scale": ("self_attn.q_norm.weight", PROJECTION_BIAS),
      "attention/key_norm/scale": ("self_attn.k_norm.weight", PROJECTION_BIAS),
  }

  def options(self, hf):
    return super().options(hf) | {"norms": "after", "qk_norm": True, "wide_qk_norm": True}
