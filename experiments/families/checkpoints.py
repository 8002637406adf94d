"""Tiny random checkpoints, written by transformers, and what transformers computes with them."""

import dataclasses
import functools
import logging
from pathlib import Path

import numpy as np
from safetensors import safe_open

VOCAB = 48
SHARED = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
              bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 64}
STDS = {"embed_tokens": 0.1, "q_proj": 0.5, "k_proj": 0.5}
FAMILIES = {
    "qwen2_tied": ("qwen2", dict(tie_word_embeddings=True, rope_theta=1e6)),
    "qwen2_untied": ("qwen2", dict(tie_word_embeddings=False)),
    "qwen3_tied": ("qwen3", dict(tie_word_embeddings=True, head_dim=16)),
    "qwen3_untied": ("qwen3", dict(tie_word_embeddings=False, head_dim=16)),
    "llama": ("llama", dict(tie_word_embeddings=False, rope_parameters=LLAMA3)),
    "qwen3_moe": ("qwen3_moe",
                  dict(tie_word_embeddings=False, head_dim=16, num_experts=4, num_experts_per_tok=2,
                       moe_intermediate_size=24, norm_topk_prob=True)),
    "qwen3_moe_mixed": ("qwen3_moe",
                        dict(tie_word_embeddings=False, head_dim=16, num_experts=4,
                             num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True,
                             num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[1],
                             attention_bias=True)),
    "llama_biases": ("llama", dict(tie_word_embeddings=False, attention_bias=True)),
    "qwen3_biases": ("qwen3", dict(tie_word_embeddings=True, head_dim=16, attention_bias=True)),
    "qwen2_yarn": ("qwen2", dict(tie_word_embeddings=False, rope_parameters=YARN)),
    "llama_yarn": ("llama", dict(tie_word_embeddings=False, rope_parameters=YARN | {
        "beta_fast": 8, "beta_slow": 2, "mscale": 1.2, "mscale_all_dim": 0.6, "truncate": False})),
    "mistral": ("mistral", dict(tie_word_embeddings=False, sliding_window=6, head_dim=16)),
    "mistral_full": ("mistral", dict(tie_word_embeddings=True, sliding_window=None)),
    "olmo2": ("olmo2", dict(tie_word_embeddings=False, rope_theta=5e5)),
    "olmo2_tied": ("olmo2", dict(tie_word_embeddings=True, attention_bias=True)),
    "smollm3": ("smollm3", dict(tie_word_embeddings=True, num_hidden_layers=4)),
    "smollm3_untied": ("smollm3", dict(tie_word_embeddings=False, num_hidden_layers=2,
                                       no_rope_layers=[0, 1])),
    "gemma3": ("gemma3_text", dict(tie_word_embeddings=True, num_hidden_layers=4, head_dim=16,
                                   sliding_window=6, sliding_window_pattern=3,
                                   query_pre_attn_scalar=24)),
    "gemma3_stretched": ("gemma3_text", dict(
        tie_word_embeddings=True, num_hidden_layers=2, head_dim=16, sliding_window=9,
        layer_types=["full_attention", "sliding_attention"], query_pre_attn_scalar=16,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}})),
}
# Of families that plugins of experiments/extend register.
PLUGIN_FAMILIES = {
    "olmo3": ("olmo3", dict(
        tie_word_embeddings=False, num_hidden_layers=4, sliding_window=6,
        rope_parameters={"full_attention": YARN,
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})),
}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A directory, and the network of transformers whose weights it holds."""

  family: str
  directory: Path
  network: object


@functools.cache
def quiet() -> None:
  """Makes transformers silent, and single-threaded because tests run beside each other."""
  import torch
  import transformers

  torch.set_num_threads(1)

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  logging.getLogger("transformers").setLevel(logging.ERROR)


def make(family: str, directory: Path, dtype="float32", **save) -> Checkpoint:
  """Writes a checkpoint whose random weights make every parameter count.

  Weights have std 0.1 to 0.5; norms and biases are away from 1 and 0.
  """
  import torch
  import transformers

  quiet()
  kind, more = (FAMILIES | PLUGIN_FAMILIES)[family]
  torch.manual_seed(sum(map(ord, family)))
  network = transformers.AutoModelForCausalLM.from_config(
      transformers.CONFIG_MAPPING[kind](**SHARED | more)).eval()
  with torch.no_grad():
    for name, p in network.named_parameters():
      std = next((std for part, std in STDS.items() if part in name), 0.2)
      p.copy_((1.0 if "norm" in name else 0.0) + std * torch.randn_like(p))
  network = network.to(getattr(torch, dtype))
  network.save_pretrained(directory, **save)
  return Checkpoint(family, directory, network)


def reload(directory: Path, dtype="auto"):
  """The network that transformers makes of a directory."""
  import transformers

  quiet()
  return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def stored_names(directory: Path) -> list[str]:
  """Names of all tensors in all files, sorted."""
  names = []
  for file in directory.glob("*.safetensors"):
    with safe_open(file, framework="np") as handle:
      names += handle.keys()
  return sorted(names)


def logits(network, ids: np.ndarray) -> np.ndarray:
  """[R, S, V] f32."""
  import torch

  with torch.no_grad():
    return network(torch.tensor(ids)).logits.float().numpy()


def greedy(network, prompt: list[int], count: int) -> list[int]:
  """The continuation of one prompt."""
  import torch

  ids = torch.as_tensor([prompt])
  with torch.no_grad():
    out = network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                           max_new_tokens=count, min_new_tokens=count)
  return out[0, len(prompt):].tolist()
