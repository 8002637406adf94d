"""Shapes of the policy network."""

import dataclasses

from jaxrl_llm.fields import ConfigError, option


@dataclasses.dataclass(frozen=True)
class RopeScalingConfig:
  """Stretching of the rotary frequencies for contexts beyond those of pretraining."""

  name: str = option("none", "how the frequencies are stretched",
                     choices=("none", "linear", "llama3"))
  factor: float = option(8.0, "how many times longer the context becomes", low=1.0)
  low_frequency_factor: float = option(
      1.0, "llama3: wavelengths beyond original_length / this are stretched fully", low=0.0)
  high_frequency_factor: float = option(
      4.0, "llama3: wavelengths below original_length / this are kept", low=0.0)
  original_length: int = option(8192, "llama3: context length of pretraining, tokens", low=1)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Decoder of the Qwen2, Qwen3, Llama 3 or Qwen3-MoE shape; `pretrained` sets these from a
  checkpoint.
  """

  vocab_size: int = option(32, "rows of the embedding; at least the tokenizer's size", low=2)
  width: int = option(128, "D, width of the residual stream", low=1)
  num_layers: int = option(4, "N, decoder blocks", low=1)
  num_heads: int = option(4, "H, query heads; a multiple of num_kv_heads", low=1)
  num_kv_heads: int = option(2, "K, key and value heads", low=1)
  head_dim: int = option(32, "width of one head; even, for the rotary embedding", low=2)
  mlp_width: int = option(384, "hidden width of the SwiGLU", low=1)
  qkv_bias: bool = option(False, "biases on query, key and value projections (Qwen2)")
  qk_norm: bool = option(True, "RMSNorm on queries and keys (Qwen3)")
  num_experts: int = option(0, "experts of each MLP (Qwen3-MoE); 0: a dense MLP", low=0)
  experts_per_token: int = option(2, "experts that a token is sent to", low=1)
  expert_width: int = option(128, "hidden width of one expert", low=1)
  normalize_router: bool = option(True, "the chosen experts' weights sum to 1")
  rope_base: float = option(1e4, "base of the rotary frequencies", low=1.0)
  rope_scaling: RopeScalingConfig = RopeScalingConfig()
  norm_epsilon: float = option(1e-6, "added to the mean square in RMSNorm", low=0.0)
  tie_head: bool = option(True, "the output head is the transposed embedding")
  value_head: bool = option(False,
                            "a linear value head beside the output head; a critic switches it on")
  scan_layers: bool = option(False, "stack the blocks and scan: small programs, slow decode on CPU")
  remat: str = option("none", "what the backward pass recomputes", choices=("none", "full", "dots"))
  compute_dtype: str = option("float32", "dtype of activations", choices=("float32", "bfloat16"))


def check_model(m: ModelConfig) -> None:
  """Raises ConfigError where shapes do not fit each other."""
  if m.num_heads % m.num_kv_heads:
    raise ConfigError(
        f"model.num_heads = {m.num_heads} is not a multiple of model.num_kv_heads = "
        f"{m.num_kv_heads}. "
        f"Fix: choose num_kv_heads among the divisors of {m.num_heads}.")
  if m.head_dim % 2:
    raise ConfigError(
        f"model.head_dim = {m.head_dim} is odd; the rotary embedding needs pairs. Fix: an even "
        "number."
    )
  if m.num_experts and m.experts_per_token > m.num_experts:
    raise ConfigError(
        f"model.experts_per_token = {m.experts_per_token} exceeds model.num_experts = "
        f"{m.num_experts}. "
        f"Fix: choose at most {m.num_experts}.")
