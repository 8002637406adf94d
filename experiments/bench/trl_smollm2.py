"""Workload S with TRL's GRPOTrainer on a CPU, for smollm2.py.

It runs in TRL's own environment and imports nothing of this package; transformers reads the model
from its GGUF file. JSON: median seconds of a step after the first and of its part until the rollout
reaches the reward, sampled tokens of a step, and the peak of resident memory.
"""

import argparse
import json
import os
import re
import resource
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


class Clock(transformers.TrainerCallback):
  """Notes when each rollout reaches the reward, its tokens, and when each step ends."""

  def __init__(self):
    self.rewarded: list[float] = []
    self.ended: list[float] = []
    self.tokens: list[int] = []

  def reward(self, completions, completion_ids, answer, **_) -> list[float]:
    """Returns 1 where the last number of a completion is the answer."""
    self.rewarded.append(time.perf_counter())
    self.tokens.append(sum(map(len, completion_ids)))
    texts = [re.findall(r"-?\d+", completion[0]["content"]) for completion in completions]
    return [float(bool(numbers) and numbers[-1] == right)
            for numbers, right in zip(texts, answer, strict=True)]

  def on_step_end(self, args, state, control, **_):
    self.ended.append(time.perf_counter())


def parse() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__)
  for name in ("prompts", "group", "new", "micro", "steps"):
    parser.add_argument(f"--{name}", type=int, required=True)
  for name in ("model", "problems", "json"):
    parser.add_argument(f"--{name}", type=Path, required=True)
  return parser.parse_args()


def train(args: argparse.Namespace) -> tuple[Clock, float]:
  """Returns the clock after all steps, and when they began."""
  place = {"pretrained_model_name_or_path": str(args.model.parent), "gguf_file": args.model.name}
  tokenizer = transformers.AutoTokenizer.from_pretrained(**place, padding_side="left")
  read = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
  # The trainer refuses what came from a quantized file, though its weights are float32 now.
  shape = transformers.AutoConfig.from_pretrained(**place)
  shape.__dict__.pop("quantization_config", None)
  model = transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
  model.load_state_dict(read.state_dict())
  del read
  rows = [json.loads(line) for line in args.problems.read_text().splitlines()]
  data = Dataset.from_list([
      {"prompt": [{"role": "system", "content": row["system"]},
                  {"role": "user", "content": row["question"]}], "answer": row["answer"]}
      for row in rows])
  clock = Clock()
  settings = trl.GRPOConfig(
      output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, learning_rate=1e-6, beta=0.0,
      per_device_train_batch_size=args.micro, num_generations=args.group,
      gradient_accumulation_steps=max(1, args.prompts * args.group // args.micro),
      max_completion_length=args.new, temperature=1.0, top_p=1.0, top_k=0, max_steps=args.steps,
      report_to=[], save_strategy="no", gradient_checkpointing=False, disable_tqdm=True)
  trainer = trl.GRPOTrainer(model=model, reward_funcs=clock.reward, args=settings,
                            callbacks=[clock], processing_class=tokenizer, train_dataset=data)
  begin = time.perf_counter()
  trainer.train()
  return clock, begin


def main() -> None:
  args = parse()
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  torch.manual_seed(0)
  clock, begin = train(args)
  begins = np.array([begin, *clock.ended[:-1]])
  seconds, generation = np.array(clock.ended) - begins, np.array(clock.rewarded) - begins
  args.json.write_text(json.dumps({
      "versions": {module.__name__: module.__version__ for module in (torch, transformers, trl)},
      "iteration": float(np.median(seconds[1:])), "rollout": float(np.median(generation[1:])),
      "tokens": float(np.median(clock.tokens[1:])),
      "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}) + "\n")


if __name__ == "__main__":
  main()
