"""Tiny GGUF files of experiments/families' networks, laid out as llama.cpp's converter does."""

import json
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TYPES = gguf.GGMLQuantizationType
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}
TEXT = ["The sum of 17 and 26 is 43, isn't it? We'll see 1234567 of them.", "the cat sat on a mat"]


def name(full: str) -> str:
  """llama.cpp's name of a tensor of transformers."""
  stem, kind = full.rsplit(".", 1)
  if stem in NAMES:
    return f"{NAMES[stem]}.{kind}"
  _, _, layer, inner = stem.split(".", 3)
  return f"blk.{layer}.{LAYER[inner]}.{kind}"


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
  """Rows of q or k as llama.cpp wants them: halves of a head become pairs of neighbours."""
  shape = weights.shape
  return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def stored_type(tensor: np.ndarray, kind) -> object:
  """What a converter stores a tensor as: vectors, and rows of no whole blocks, in f32."""
  block, _ = gguf.GGML_QUANT_SIZES[kind]
  return TYPES.F32 if tensor.ndim == 1 or tensor.shape[-1] % block else kind


def add_network(writer: gguf.GGUFWriter, network, kind=TYPES.F32, *, permute=True) -> None:
  """Adds shapes and tensors of a network of transformers; `permute` False is wrong for llama."""
  c, arch = network.config, network.config.model_type
  writer.add_block_count(c.num_hidden_layers)
  writer.add_context_length(c.max_position_embeddings)
  writer.add_embedding_length(c.hidden_size)
  writer.add_feed_forward_length(c.intermediate_size)
  writer.add_head_count(c.num_attention_heads)
  writer.add_head_count_kv(c.num_key_value_heads)
  writer.add_layer_norm_rms_eps(c.rms_norm_eps)
  rope = c.rope_parameters
  writer.add_rope_freq_base(rope["rope_theta"])
  head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
  if arch == "qwen3":
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
  if rope["rope_type"] == "yarn":
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
  if rope["rope_type"] == "llama3":
    writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head_dim))
  heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}
  for full, parameter in network.state_dict().items():
    if full == "lm_head.weight" and c.tie_word_embeddings:
      continue
    values, ours = parameter.float().numpy(), name(full)
    part = ours.split(".")[2] if ours.startswith("blk.") else ""
    if arch == "llama" and permute and part in heads:
      values = permuted(values, heads[part])
    stored = stored_type(values, kind)
    writer.add_tensor(ours, gguf.quants.quantize(values, stored), raw_dtype=stored)


def _llama3_factors(rope, dim: int) -> np.ndarray:
  """Frequency by frequency, as the converter writes them."""
  out = []
  for exponent in range(0, dim, 2):
    wavelength = 2 * np.pi * rope["rope_theta"] ** (exponent / dim)
    length, low, high = (rope[key] for key in (
        "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    if wavelength < length / high:
      out.append(1.0)
    elif wavelength > length / low:
      out.append(rope["factor"])
    else:
      smooth = (length / wavelength - low) / (high - low)
      out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
  return np.asarray(out, np.float32)


def add_byte_level(writer: gguf.GGUFWriter, pre: str, *, bos: bool = False) -> list[str]:
  """Adds a byte-level tokenizer trained on TEXT, and returns its tokens."""
  tokenizer = Tokenizer(models.BPE())
  words = pre_tokenizers.ByteLevel(add_prefix_space=False)
  digits = pre_tokenizers.Digits(individual_digits=True)
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*([digits] if pre == "smollm" else []), words])
  tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(
      vocab_size=320, special_tokens=["<|endoftext|>", "<|im_start|>"], show_progress=False,
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
  ids = tokenizer.get_vocab()
  tokens = sorted(ids, key=ids.get) + ["<think>"]
  merges = json.loads(tokenizer.to_str())["model"]["merges"]
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre(pre)
  writer.add_token_list(tokens)
  writer.add_token_types([3, 3] + [1] * (len(tokens) - 3) + [4])
  writer.add_token_merges([" ".join(pair) for pair in merges])
  writer.add_bos_token_id(1)
  writer.add_eos_token_id(0)
  writer.add_eot_token_id(1)
  writer.add_add_bos_token(bos)
  writer.add_chat_template("{{ messages[0]['content'] }}{% if add_generation_prompt %}>{% endif %}")
  return tokens


def add_sentencepiece(writer: gguf.GGUFWriter) -> list[str]:
  """Adds a vocabulary with scores, without merges, and returns its tokens."""
  words = ["\u2581", "t", "h", "e", "c", "a", "s", "o", "n", "m", "\u2581t", "he", "\u2581the",
           "at",
           "\u2581c", "\u2581cat", "sat", "\u2581a", "on", "\u2581s"]
  tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
  writer.add_tokenizer_model("llama")
  writer.add_token_list(tokens)
  writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(words))])
  writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words))
  writer.add_bos_token_id(1)
  writer.add_eos_token_id(2)
  writer.add_unk_token_id(0)
  return tokens


def write(path: Path, arch: str, *steps, **options) -> Path:
  """Writes a file; each step gets the writer. `options` are GGUFWriter's."""
  writer = gguf.GGUFWriter(path, arch, **options)
  for step in steps:
    step(writer)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path
