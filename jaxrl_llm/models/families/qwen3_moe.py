"""Qwen3-MoE: Qwen3 with experts in all layers, or in all but some."""

from jaxrl_llm.models.families.qwen3 import Qwen3
from jaxrl_llm.registry import FAMILIES


@FAMILIES.register("qwen3_moe")
class Qwen3Moe(Qwen3):
  """As Qwen3, with experts."""

  architecture = "Qwen3MoeForCausalLM"
  traits = Qwen3.traits | {"num_experts": None}
  gguf = None

  def unsupported(self, hf):
    window = hf.sliding_window
    return [*super().unsupported(hf), (window, f"sliding_window = {window} (supported: null)")]

  def options(self, hf):
    dense = tuple(i for i in range(hf.num_hidden_layers) if i in (hf.mlp_only_layers or [])
                  or not hf.num_experts or (i + 1) % hf.decoder_sparse_step)
    options = super().options(hf)
    if len(dense) == hf.num_hidden_layers:
      return options
    return options | dict(
        num_experts=hf.num_experts, experts_per_token=hf.num_experts_per_tok,
        expert_width=hf.moe_intermediate_size, normalize_router=hf.norm_topk_prob,
        dense_layers=dense)

  def keys(self, cfg, rope):
    return super().keys(cfg, rope) | {
        "num_experts": cfg.num_experts,
        "num_local_experts": cfg.num_experts,
        "decoder_sparse_step": 1,
        "num_experts_per_tok": cfg.experts_per_token,
        "moe_intermediate_size": cfg.expert_width,
        "norm_topk_prob": cfg.normalize_router,
        "mlp_only_layers": list(cfg.dense_layers),
    }
