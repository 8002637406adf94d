"""SmolLM3: Llama without rotary embedding in every fourth layer.

Source: arXiv 2501.18795 (layers without it), and SmolLM3's published config.
"""

from jaxrl_llm.models.families.family import TRAITS, Family
from jaxrl_llm.registry import FAMILIES


@FAMILIES.register("smollm3")
class SmolLM3(Family):
  """As Llama, without that embedding where `no_rope_layers` of config.json has a 0."""

  architecture = "SmolLM3ForCausalLM"
  traits = TRAITS | {"no_rope_layers": None}

  def options(self, hf):
    turned = hf.no_rope_layers[:hf.num_hidden_layers]
    layers = tuple(i for i, has_rope in enumerate(turned) if not has_rope)
    return super().options(hf) | {"no_rope_layers": layers}

  def keys(self, cfg, rope):
    turned = [int(i not in cfg.no_rope_layers) for i in range(cfg.num_layers)]
    return super().keys(cfg, rope) | {"no_rope_layers": turned, "use_sliding_window": False}
