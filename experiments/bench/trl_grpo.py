"""Workload W with TRL's GRPOTrainer on a CPU, for `iteration.py --peers`.

  TRL/bin/python experiments/bench/trl_grpo.py --steps=4 --json=trl.json

It runs in TRL's own environment and imports nothing of this package. The network is a random Qwen3
of W's shape, the tokenizer has a word for each id, and no file is downloaded. JSON: seconds of each
step (`iteration`) and of its part until the rollout reaches the reward (`generation`).
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.pop(0)  # transformers would take kernels.py of this folder for the package `kernels`

import numpy as np
import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

FIRST_ID = 3  # ids below stand for padding, end and beginning


def parse() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  sizes = {"prompts": 8, "group": 8, "prompt": 64, "new": 128, "micro": 8, "steps": 4,
           "threads": os.cpu_count() or 1, "vocab": 2048, "layers": 6, "width": 256}
  for name, default in sizes.items():
    parser.add_argument(f"--{name}", type=int, default=default)
  parser.add_argument("--json", type=Path, required=True)
  return parser.parse_args()


def word_tokenizer(vocab: int) -> transformers.PreTrainedTokenizerFast:
  """Returns a tokenizer with the word "w7" for id 7."""
  words = {f"w{i}": i for i in range(FIRST_ID, vocab)}
  special = {"<pad>": 0, "<eos>": 1, "<bos>": 2}
  inner = Tokenizer(models.WordLevel(special | words, unk_token="<pad>"))
  inner.pre_tokenizer = pre_tokenizers.Whitespace()
  return transformers.PreTrainedTokenizerFast(
      tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>",
      padding_side="left")


def network(args: argparse.Namespace) -> transformers.Qwen3ForCausalLM:
  config = transformers.Qwen3Config(
      vocab_size=args.vocab, hidden_size=args.width, intermediate_size=3 * args.width,
      num_hidden_layers=args.layers, num_attention_heads=8, num_key_value_heads=4,
      head_dim=args.width // 8, tie_word_embeddings=True, rope_theta=1e6,
      max_position_embeddings=4096, pad_token_id=0, eos_token_id=1, bos_token_id=2)
  return transformers.Qwen3ForCausalLM(config)


class Clock(transformers.TrainerCallback):
  """Notes when each rollout reaches the reward, and when each step ends."""

  def __init__(self):
    self.rewarded: list[float] = []
    self.ended: list[float] = []

  def reward(self, completion_ids, **_) -> list[float]:
    """Returns the share of even ids of each completion."""
    self.rewarded.append(time.perf_counter())
    return [float(np.mean(np.array(ids) % 2 == 0)) if len(ids) else 0.0 for ids in completion_ids]

  def on_step_end(self, args, state, control, **_):
    self.ended.append(time.perf_counter())


def train(args: argparse.Namespace) -> tuple[list[float], list[float]]:
  """Returns (seconds of each step, of its generation)."""
  rng, clock = np.random.default_rng(0), Clock()
  prompts = [" ".join(f"w{i}" for i in rng.integers(FIRST_ID, args.vocab, args.prompt))
             for _ in range(2 * args.prompts * args.steps)]
  settings = trl.GRPOConfig(
      output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, learning_rate=1e-5, beta=0.0,
      per_device_train_batch_size=args.micro, num_generations=args.group,
      gradient_accumulation_steps=max(1, args.prompts * args.group // args.micro),
      max_completion_length=args.new, temperature=1.0, top_p=1.0, top_k=0, max_steps=args.steps,
      report_to=[], save_strategy="no", gradient_checkpointing=False, disable_tqdm=True)
  trainer = trl.GRPOTrainer(
      model=network(args), reward_funcs=clock.reward, args=settings, callbacks=[clock],
      processing_class=word_tokenizer(args.vocab),
      train_dataset=Dataset.from_dict({"prompt": prompts}))
  begin = time.perf_counter()
  trainer.train()
  begins = [begin, *clock.ended[:-1]]
  return ([end - start for start, end in zip(begins, clock.ended, strict=True)],
          [reward - start for start, reward in zip(begins, clock.rewarded, strict=True)])


def main() -> None:
  args = parse()
  torch.set_num_threads(args.threads)
  torch.manual_seed(0)
  iteration, generation = train(args)
  versions = {module.__name__: module.__version__ for module in (torch, transformers, trl)}
  args.json.write_text(json.dumps(
      {"versions": versions, "iteration": iteration, "generation": generation}) + "\n")


if __name__ == "__main__":
  main()
