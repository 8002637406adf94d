"""Gemma 3, the text model: windows in five of six layers, norms before and after, GELU.

Source: arXiv 2503.19786, section 2, and its published configs.
"""

from jaxrl_llm.models.families.family import ACTIVATIONS, LAYER, TRAITS, VECTOR, Family
from jaxrl_llm.registry import FAMILIES

SLIDING, FULL = "sliding_attention", "full_attention"
OPTIONS = {"qk_norm": True, "norms": "both", "norm_offset": True, "activation": "gelu_tanh",
           "embedding_scale": True}


@FAMILIES.register("gemma3_text")
class Gemma3Text(Family):
  """Windows and their rotary base are of the layers that `layer_types` calls sliding."""

  architecture = "Gemma3ForCausalLM"
  traits = TRAITS | {name: (value,) for name, value in OPTIONS.items()} | {
      "window": None, "full_layers": None, "window_rope_base": None, "score_width": None}
  layer = LAYER | {
      "attention_out_norm/scale": ("post_attention_layernorm.weight", VECTOR),
      "mlp_norm/scale": ("pre_feedforward_layernorm.weight", VECTOR),
      "mlp_out_norm/scale": ("post_feedforward_layernorm.weight", VECTOR),
  }

  def unsupported(self, hf):
    local = hf.rope_parameters[SLIDING]["rope_type"]
    caps = [name for name in ("final_logit_softcapping", "attn_logit_softcapping")
            if getattr(hf, name)]
    return [(hf.use_bidirectional_attention, "use_bidirectional_attention = true"),
            (caps, f"{', '.join(caps)} (supported: null)"),
            (local != "default", f"rope_type = {local!r} of layers with a window")]

  def rope(self, hf):
    return hf.rope_parameters[FULL]

  def options(self, hf):
    full = tuple(i for i, kind in enumerate(hf.layer_types) if kind == FULL)
    width = hf.query_pre_attn_scalar
    options = super().options(hf) | OPTIONS
    options["score_width"] = None if width == hf.head_dim else width
    if len(full) == hf.num_hidden_layers:
      return options
    return options | {"window": int(hf.sliding_window), "full_layers": full,
                      "window_rope_base": float(hf.rope_parameters[SLIDING]["rope_theta"])}

  def keys(self, cfg, rope):
    local = cfg.window_rope_base or cfg.rope_base
    kinds = [FULL if not cfg.window or i in cfg.full_layers else SLIDING
             for i in range(cfg.num_layers)]
    return super().keys(cfg, rope) | {
        "hidden_activation": ACTIVATIONS[cfg.activation],
        "query_pre_attn_scalar": cfg.head_dim if cfg.score_width is None else cfg.score_width,
        "sliding_window": cfg.window or None,
        "layer_types": kinds,
        "rope_local_base_freq": local,
        "rope_parameters": {FULL: rope, SLIDING: {"rope_type": "default", "rope_theta": local}},
    }
