"""A family of checkpoints of your own: OLMo 3, which is OLMo 2 with sliding windows.

  python experiments/main.py --config=configs/own_data.py --workdir=runs/extend_family \
    --config.plugins=experiments/extend/family.py \
    --config.pretrained=allenai/Olmo-3-7B-Instruct
"""

from jaxrl_llm import register
from jaxrl_llm.models.families.olmo2 import Olmo2

FULL, SLIDING = "full_attention", "sliding_attention"


@register.family("olmo3")
class Olmo3(Olmo2):
  """Windows in three of four layers; their rotary frequencies are not stretched."""

  architecture = "Olmo3ForCausalLM"
  traits = Olmo2.traits | {"window": None, "full_layers": None, "window_rope_base": None}

  def unsupported(self, hf):
    return [(hf.rope_parameters[SLIDING]["rope_type"] != "default", "stretched windows")]

  def rope(self, hf):
    return hf.rope_parameters[FULL]

  def options(self, hf):
    full = tuple(i for i, kind in enumerate(hf.layer_types) if kind == FULL)
    base = float(hf.rope_parameters[SLIDING]["rope_theta"])
    return super().options(hf) | {"window": hf.sliding_window, "full_layers": full,
                                  "window_rope_base": base}

  def keys(self, cfg, rope):
    kinds = [FULL if i in cfg.full_layers else SLIDING for i in range(cfg.num_layers)]
    local = {"rope_type": "default", "rope_theta": cfg.window_rope_base}
    return super().keys(cfg, rope) | {"sliding_window": cfg.window, "layer_types": kinds,
                                      "rope_parameters": {FULL: rope, SLIDING: local}}
