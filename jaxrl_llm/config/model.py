"""Shapes of the policy network."""

import dataclasses

from jaxrl_llm.fields import ConfigError, derived, option, when

STRETCHED, LLAMA3 = when(".name", "linear", "llama3"), when(".name", "llama3")
EXPERTS = when(".num_experts")


@dataclasses.dataclass(frozen=True)
class RopeScalingConfig:
  """Stretching of the rotary frequencies for contexts longer than those of pretraining."""

  name: str = option("none", "how the frequencies are stretched", choices=("none", "linear",
                                                                           "llama3"))
  factor: float = option(8.0, "how many times longer the context becomes", low=1.0,
                         when=STRETCHED)
  low_frequency_factor: float = option(
      1.0, "wavelengths above original_length / this are stretched fully", low=0.0,
      when=LLAMA3)
  high_frequency_factor: float = option(
      4.0, "wavelengths below original_length / this are kept", low=0.0, when=LLAMA3)
  original_length: int = option(8192, "context length of pretraining, tokens", low=1,
                                when=LLAMA3)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Decoder of the Qwen2, Qwen3, Llama 3 or Qwen3-MoE shape; `pretrained` sets its shapes."""

  vocab_size: int = option(32, "rows of the embedding; at least the tokenizer's size", low=2)
  width: int = option(128, "D, width of the residual stream", low=1)
  num_layers: int = option(4, "N, decoder blocks", low=1)
  num_heads: int = option(4, "H, query heads; a multiple of num_kv_heads", low=1)
  num_kv_heads: int = option(2, "K, key and value heads", low=1)
  head_dim: int = option(32, "width of one head; even, for the rotary embedding", low=2)
  mlp_width: int = option(384, "hidden width of the SwiGLU", low=1)
  qkv_bias: bool = option(False, "adds biases to query, key and value projections (Qwen2)")
  qk_norm: bool = option(True, "applies RMSNorm to queries and keys (Qwen3)")
  num_experts: int = option(0, "experts of each MLP (Qwen3-MoE); 0: a dense MLP", low=0)
  experts_per_token: int = option(2, "experts that a token is sent to", low=1,
                                  when=EXPERTS)
  expert_width: int = option(128, "hidden width of one expert", low=1, when=EXPERTS)
  normalize_router: bool = option(True, "makes the chosen experts' weights sum to 1",
                                  when=EXPERTS)
  rope_base: float = option(1e4, "base of the rotary frequencies", low=1.0)
  rope_scaling: RopeScalingConfig = RopeScalingConfig()
  norm_epsilon: float = option(1e-6, "added to the mean square in RMSNorm", low=0.0)
  tie_head: bool = option(True, "uses the transposed embedding as output head")
  value_head: bool = derived(False, "a linear value head; on where the advantage needs values")
  scan_layers: bool = option(False, "stacks the blocks and scans them: smaller programs, slower "
                             "decoding on a CPU")
  remat: str = option("none", "what the backward pass recomputes", choices=("none", "full", "dots"))
  compute_dtype: str = option("float32", "dtype of activations", choices=("float32", "bfloat16"))


def check_model(m: ModelConfig) -> None:
  """Raises ConfigError if the shapes do not fit each other."""
  if m.num_heads % m.num_kv_heads:
    raise ConfigError(
        f"model.num_heads = {m.num_heads} is not a multiple of model.num_kv_heads = "
        f"{m.num_kv_heads}. Fix: choose num_kv_heads among the divisors of {m.num_heads}.")
  if m.head_dim % 2:
    raise ConfigError(f"model.head_dim = {m.head_dim} is odd; the rotary embedding needs pairs. "
                      "Fix: an even number.")
  if m.num_experts and m.experts_per_token > m.num_experts:
    raise ConfigError(f"model.experts_per_token = {m.experts_per_token} exceeds model.num_experts "
                      f"= {m.num_experts}. Fix: choose at most {m.num_experts}.")
