"""Files as they are published: a Qwen3 checkpoint with tokenizer and template, and GSM8K lines."""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from experiments.families import checkpoints as hf_checkpoints

# ChatML with the thinking switch of Qwen3: no system turn of its own, a closed thinking block where
# thinking is off.
CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' "
    "}}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- "
    "'<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# tokens, and rows of the embedding: public checkpoints have rows to spare
VOCAB, EMBEDDED = 224, 256
PROBLEMS = 200


def problems() -> list[dict]:
  """Rows of GSM8K: a question, and an answer with calculator marks, #### and a number."""
  rng = np.random.default_rng(0)
  rows = []
  for number in range(PROBLEMS):
    a, b = (int(x) for x in rng.integers(1, 4, 2))
    rows.append({"question": f"Box {number}: Ann has {a} pens and buys {b}. How many pens has Ann?",
                 "answer": f"Ann has {a}+{b}=<<{a}+{b}={a + b}>>{a + b} pens.\n#### {a + b}"})
  return rows


def write_lines(path: Path) -> Path:
  path.write_text("".join(json.dumps(row) + "\n" for row in problems()))
  return path


def train_tokenizer() -> PreTrainedTokenizerFast:
  """Byte-level BPE over ASCII, learnt from the problems."""
  backend = Tokenizer(models.BPE())
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  ascii_bytes = [
      c for c, _ in pre_tokenizers.ByteLevel(
          add_prefix_space=False, use_regex=False).pre_tokenize_str("".join(map(chr, range(128))))
  ]
  trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL,
                                initial_alphabet=list(ascii_bytes[0]), show_progress=False)
  roles = ["user\n", "assistant\n<think>\n\n</think>\n\n"] * PROBLEMS
  backend.train_from_iterator([text for row in problems() for text in row.values()] + roles,
                              trainer)
  tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>",
                                      pad_token="<|endoftext|>")
  tokenizer.chat_template = CHATML
  return tokenizer


def write_checkpoint(directory: Path) -> Path:
  """A random Qwen3 of two layers, written by transformers, with all files of a release."""
  import torch
  import transformers

  hf_checkpoints.quiet()
  torch.manual_seed(0)
  config = transformers.Qwen3Config(vocab_size=EMBEDDED, hidden_size=32, intermediate_size=64,
                                    num_hidden_layers=2, num_attention_heads=4,
                                    num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
                                    max_position_embeddings=256, rope_theta=1e6)
  transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
  tokenizer = train_tokenizer()
  tokenizer.save_pretrained(directory)
  stop = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
  transformers.GenerationConfig(eos_token_id=stop, pad_token_id=stop[1],
                                do_sample=True).save_pretrained(directory)
  return directory
