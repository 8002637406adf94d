r"""Qwen2.5-0.5B-Instruct on GSM8K: the recipe to begin with, for one GPU or one TPU chip.

  python experiments/main.py --config=configs/qwen25_0_5b_gsm8k.py --workdir=runs/qwen25_0_5b_gsm8k
  python experiments/main.py --config=configs/qwen25_0_5b_gsm8k.py:minpro \
    --workdir=runs/qwen25_0_5b_minpro

Planned for v6e:1, 1 device of 32 GB (experiments/plan.py; compiled, not run):
  prefill    8.57 GB each; 8 x 0.00125 s, compute binds, MFU 97.8 %
  admit      8.35 GB each; 8 x 5.76e-06 s, memory binds, MFU 0 %
  decode     8.75 GB each; 16 x 0.0857 s, memory binds, MFU 11.1 %
  score       8.8 GB each; 1 x 0.243 s, compute binds, MFU 93.6 %
  step       11.4 GB each; 4 x 0.646 s, memory binds, MFU 26.4 %

Published: nothing; the recipe is ours. Any preset runs on it.
Not run here.

Source: the instruction is read in the evaluation code of Qwen2.5-Math (arXiv 2409.12122), the
columns in the data files of GSM8K (arXiv 2110.14168). All else is ours.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config

PRESET = "ctpo"


def get_config(preset: str = PRESET):
  config = base_config()
  config.pretrained = "Qwen/Qwen2.5-0.5B-Instruct"
  config.iterations = 200
  config.task.update(name="dataset", heldout_problems=1319)
  config.task.data.update(path="openai/gsm8k:main", split="train", mapping="gsm8k")
  config.task.data.update(heldout_path="openai/gsm8k:main", heldout_split="test")
  config.task.prompt.update(
      style="chat",
      system="Please reason step by step, and put your final answer within \\boxed{}.")
  # All from here on: ours.
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=384, max_new_tokens=512,
                        slots=128, chunk=64, window=128)
  config.updates.update(optimizer_batches=4, micro_batches=8)
  config.optimizer.update(learning_rate=1e-6, b1=0.9, b2=0.999, weight_decay=0.01,
                          max_grad_norm=1.0)
  config.evaluation.every = 10
  config.checkpoint.every = 20
  config.model.update(compute_dtype="bfloat16", remat="full", scan_layers=True)
  return presets.apply(config, preset)
