"""Shapes of the policy network."""

import dataclasses

from jaxrl_llm.fields import ConfigError, derived, option, when

STRETCHED, LLAMA3 = when(".name", "linear", "llama3", "yarn"), when(".name", "llama3")
YARN = when(".name", "yarn")
EXPERTS, WINDOW = when(".num_experts"), when(".window")


@dataclasses.dataclass(frozen=True)
class RopeScalingConfig:
  """Stretching of the rotary frequencies for contexts longer than in pretraining."""

  name: str = option("none", "how the frequencies are stretched", choices=("none", "linear",
                                                                           "llama3", "yarn"))
  factor: float = option(8.0, "how many times longer the context becomes", low=1.0, when=STRETCHED)
  low_frequency_factor: float = option(
      1.0, "wavelengths above original_length / this are stretched fully", low=0.0,
      when=LLAMA3)
  high_frequency_factor: float = option(
      4.0, "wavelengths below original_length / this are kept", low=0.0, when=LLAMA3)
  original_length: int = option(8192, "context length of pretraining, tokens", low=1,
                                when=when(".name", "llama3", "yarn"))
  beta_fast: float = option(32.0, "pairs with more turns than this in original_length are kept",
                            low=1e-3, when=YARN)
  beta_slow: float = option(1.0, "pairs with fewer turns than this are stretched fully",
                            low=1e-3, when=YARN)
  attention_factor: float | None = option(
      None, "multiplies rotated queries and keys; none: 1 + 0.1 ln(factor)", low=0.0, when=YARN)
  truncate: bool = option(True, "rounds the range between the two betas to whole pairs", when=YARN)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Decoder of one of the families in models/families; `pretrained` sets its shapes."""

  vocab_size: int = option(32, "rows of the embedding; at least the tokenizer's size", low=2)
  width: int = option(128, "D, width of the residual stream", low=1)
  num_layers: int = option(4, "N, decoder blocks", low=1, high=1000)
  num_heads: int = option(4, "H, query heads; a multiple of num_kv_heads", low=1)
  num_kv_heads: int = option(2, "K, key and value heads", low=1)
  head_dim: int = option(32, "width of one head; even, for the rotary embedding", low=2)
  mlp_width: int = option(384, "hidden width of the gated MLP", low=1)
  activation: str = option("silu", "of the MLP's gate (gelu_tanh: Gemma)",
                           choices=("silu", "gelu_tanh"), when=when(".num_experts", 0))
  qkv_bias: bool = option(False, "adds biases to query, key and value projections (Qwen2)")
  out_bias: bool = option(False, "adds a bias to the output projection of the attention, too "
                          "(attention_bias of Llama and Qwen3)", when=when(".qkv_bias"))
  qk_norm: bool = option(True, "applies RMSNorm to queries and keys (Qwen3)")
  wide_qk_norm: bool = option(False, "normalises all heads together (OLMo 2), not each one",
                              when=when(".qk_norm"))
  norms: str = option("before", "where a block normalises: before attention and MLP, after them "
                      "(OLMo 2), or both (Gemma 3)", choices=("before", "after", "both"))
  norm_offset: bool = option(False, "RMSNorm multiplies by 1 + scale (Gemma)")
  embedding_scale: bool = option(False, "multiplies embeddings by sqrt(width) (Gemma)")
  score_width: int | None = option(None, "scores of attention are divided by its square root "
                                     "(Gemma); none: head_dim", low=1)
  window: int = option(0, "tokens, itself among them, that a token attends to (Mistral, Gemma 3); "
                       "0: all earlier ones", low=0)
  full_layers: tuple = option((), "layers, from 0, that have no window nevertheless", of=int,
                              when=WINDOW)
  window_rope_base: float | None = option(
      None, "base of the rotary frequencies of layers with a window, which are not stretched "
      "(Gemma 3); none: as in the others", low=1.0, when=WINDOW)
  no_rope_layers: tuple = option((), "layers, from 0, without rotary embedding (SmolLM3)", of=int)
  num_experts: int = option(0, "experts of each MLP (Qwen3-MoE); 0: a dense MLP", low=0)
  experts_per_token: int = option(2, "experts that a token is sent to", low=1, when=EXPERTS)
  expert_width: int = option(128, "hidden width of one expert", low=1, when=EXPERTS)
  normalize_router: bool = option(True, "makes the chosen experts' weights sum to 1", when=EXPERTS)
  dense_layers: tuple = option((), "layers, from 0, that have a dense MLP among those with experts",
                               of=int, when=EXPERTS)
  rope_base: float = option(1e4, "base of the rotary frequencies", low=1.0)
  rope_scaling: RopeScalingConfig = RopeScalingConfig()
  norm_epsilon: float = option(1e-6, "added to the mean square in RMSNorm", low=0.0)
  tie_head: bool = option(True, "uses the transposed embedding as output head")
  family: str = derived("", "model_type of `pretrained`, whose names an export has")
  value_head: bool = derived(False, "a linear value head; on where the advantage needs values")
  value_bounded: bool = derived(False, "its values are within 0 and 1, as critic.bounded says")
  mtp: bool = derived(False, "a module that predicts two tokens ahead; on where a loss term reads "
                      "it")
  scan_layers: bool = option(False, "stacks the blocks and scans them: smaller programs, slower "
                             "decoding on a CPU", auto=True)
  remat: str = option("none", "what the backward pass recomputes: nothing, whole blocks, all but "
                      "products with weights and, on TPUs, attention, or whole blocks whose inputs "
                      "the host's memory holds",
                      choices=("none", "full", "dots", "offload"), auto=True)
  attention: str = option("auto", "how whole rows attend to themselves: all scores at once, in "
                          "blocks, or by a kernel of TPUs (splash) or GPUs (cudnn, triton); auto: "
                          "by device and length",
                          choices=("auto", "plain", "blocked", "splash", "cudnn", "triton"))
  compute_dtype: str = option("float32", "dtype of activations", choices=("float32", "bfloat16"),
                             auto=True)

  def check(self, cfg) -> None:
    """Refuses shapes that do not fit each other."""
    del cfg
    check_model(self)


def check_model(m: ModelConfig) -> None:
  """Raises ConfigError if the shapes do not fit each other."""
  if m.num_heads % m.num_kv_heads:
    raise ConfigError(
        f"model.num_heads = {m.num_heads} is not a multiple of model.num_kv_heads = "
        f"{m.num_kv_heads}. Fix: choose num_kv_heads among the divisors of {m.num_heads}.")
  scaling = m.rope_scaling
  if scaling.name == "yarn" and scaling.beta_fast <= scaling.beta_slow:
    raise ConfigError(
        f"model.rope_scaling.beta_fast = {scaling.beta_fast} does not exceed "
        f"model.rope_scaling.beta_slow = {scaling.beta_slow}: no pair of the rotary embedding "
        "would be stretched in part. Fix: a larger beta_fast, 32 in the paper, or a smaller "
        "beta_slow.")
  if m.head_dim % 2:
    raise ConfigError(f"model.head_dim = {m.head_dim} is odd; the rotary embedding needs pairs. "
                      "Fix: an even number.")
  if m.num_experts and m.experts_per_token > m.num_experts:
    raise ConfigError(f"model.experts_per_token = {m.experts_per_token} exceeds model.num_experts "
                      f"= {m.num_experts}. Fix: choose at most {m.num_experts}.")
  for name in ("dense_layers", "full_layers", "no_rope_layers"):
    layers = getattr(m, name)
    bad = [i for i in layers if not 0 <= i < m.num_layers or layers.count(i) > 1]
    if bad:
      raise ConfigError(f"model.{name} = {layers}: different layers from 0 to {m.num_layers - 1} "
                        f"are allowed. Fix: leave out {bad[0]}.")
  if m.num_experts and len(m.dense_layers) == m.num_layers:
    raise ConfigError(f"model.dense_layers = {m.dense_layers}: one of {m.num_layers} layers must "
                      "have experts. Fix: leave out one, or model.num_experts=0.")
  if m.scan_layers and not is_uniform(m):
    names = [name for name in ("dense_layers", "full_layers", "no_rope_layers") if getattr(m, name)]
    raise ConfigError(f"model.scan_layers = True with model.{names[0]} = {getattr(m, names[0])}: "
                      "layers of two kinds cannot be stacked. Fix: model.scan_layers=False.")


def is_uniform(m: ModelConfig) -> bool:
  """Returns whether all layers are of one kind, so that they can be stacked."""
  return not (m.dense_layers or m.no_rope_layers or (m.window and m.full_layers))
