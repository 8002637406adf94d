"""What a family of checkpoints says of itself: by default what Llama's does."""

from collections.abc import Mapping
from typing import Any

from jaxrl_llm.config import ModelConfig

# For each axis of a tensor, the axes of our parameter that are merged into it, by kind of weight.
VECTOR, PLAIN, TRANSPOSED = ((0,),), ((0,), (1,)), ((1,), (0,))
PROJECTION_IN, PROJECTION_OUT, PROJECTION_BIAS = ((1, 2), (0,)), ((2,), (0, 1)), ((0, 1),)
Names = dict[str, tuple[str, tuple[tuple[int, ...], ...]]]

# Our path -> (name of the tensor, axes): of parameters outside the blocks, of any block, of a dense
# MLP and of a mixture, where {} is the expert.
TOP: Names = {
    "embedding": ("model.embed_tokens.weight", PLAIN),
    "final_norm/scale": ("model.norm.weight", VECTOR),
    "head": ("lm_head.weight", TRANSPOSED),
}
LAYER: Names = {
    "attention_norm/scale": ("input_layernorm.weight", VECTOR),
    "attention/query": ("self_attn.q_proj.weight", PROJECTION_IN),
    "attention/key": ("self_attn.k_proj.weight", PROJECTION_IN),
    "attention/value": ("self_attn.v_proj.weight", PROJECTION_IN),
    "attention/out": ("self_attn.o_proj.weight", PROJECTION_OUT),
    "attention/query_bias": ("self_attn.q_proj.bias", PROJECTION_BIAS),
    "attention/key_bias": ("self_attn.k_proj.bias", PROJECTION_BIAS),
    "attention/value_bias": ("self_attn.v_proj.bias", PROJECTION_BIAS),
    "attention/out_bias": ("self_attn.o_proj.bias", VECTOR),
    "attention/query_norm/scale": ("self_attn.q_norm.weight", VECTOR),
    "attention/key_norm/scale": ("self_attn.k_norm.weight", VECTOR),
    "mlp_norm/scale": ("post_attention_layernorm.weight", VECTOR),
}
DENSE: Names = {f"mlp/{ours}": (f"mlp.{ours}_proj.weight", TRANSPOSED)
                for ours in ("gate", "up", "down")}
EXPERTS: Names = {
    "mlp/router": ("mlp.gate.weight", TRANSPOSED),
    **{f"mlp/{ours}": (f"mlp.experts.{{}}.{ours}_proj.weight", TRANSPOSED)
       for ours in ("gate", "up", "down")},
}
# The layers of GGUF, by the names of llama.cpp, and what transformers calls them.
GGUF: Mapping[str, str] = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj"}
# Options that decide what a network computes, and not its sizes: Llama's values; None: any.
TRAITS: dict[str, Any] = {
    "qkv_bias": (False, True), "out_bias": (False, True), "qk_norm": (False,), "num_experts": (0,),
    "wide_qk_norm": (False,), "norms": ("before",), "norm_offset": (False,),
    "activation": ("silu",), "embedding_scale": (False,), "score_width": (None,), "window": (0,),
    "full_layers": ((),), "window_rope_base": (None,), "no_rope_layers": ((),)}
# The activations of MLPs that transformers names.
ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}


class Family:
  """One `model_type` of config.json. A subclass says only what differs from Llama.

  Attributes:
    architecture: of config.json.
    traits: the values that options have in this family, as `TRAITS`.
    bias_key: whether `attention_bias` of config.json adds biases.
    layer, dense, experts: names of tensors, as `LAYER`, `DENSE` and `EXPERTS`.
    gguf: names of tensors in GGUF, as `GGUF`; None: that format is not read.
    gguf_turned: whether llama.cpp reorders the rows of queries and keys.
  """

  architecture: str
  traits = TRAITS
  bias_key = True
  top, layer, dense, experts = TOP, LAYER, DENSE, EXPERTS
  gguf: Mapping[str, str] | None = None
  gguf_turned = False

  def unsupported(self, hf) -> list[tuple[Any, str]]:
    """Returns (whether config.json asks for it, its description) of what is not supported."""
    sliding = "sliding_attention" in (getattr(hf, "layer_types", None) or [])
    return [(sliding, "sliding-window attention in use (supported: use_sliding_window = false)")]

  def options(self, hf) -> dict[str, Any]:
    """Returns fields of ModelConfig beyond the sizes that every family has."""
    has_bias = self.bias_key and bool(getattr(hf, "attention_bias", False))
    return {"qkv_bias": has_bias, "out_bias": has_bias, "qk_norm": False}

  def rope(self, hf) -> dict[str, Any]:
    """Returns the rotary numbers of layers without a window."""
    return hf.rope_parameters

  def keys(self, cfg: ModelConfig, rope: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of config.json beyond the sizes and the rotary numbers `rope`."""
    return {"attention_bias": cfg.out_bias} if self.bias_key else {}

  def computes(self, cfg: ModelConfig) -> bool:
    """Returns whether a config describes a network of this family."""
    same_biases = not self.bias_key or cfg.qkv_bias == cfg.out_bias
    return same_biases and all(values is None or getattr(cfg, name) in values
                               for name, values in self.traits.items())
