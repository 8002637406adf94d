r"""Qwen2.5-0.5B-Instruct on GSM8K: the recipe to begin with, for one GPU or one TPU chip.

  python experiments/main.py --config=configs/qwen25_0_5b_gsm8k.py --workdir=runs/qwen25_0_5b_gsm8k
  python experiments/main.py --config=configs/qwen25_0_5b_gsm8k.py:minpro \
    --workdir=runs/qwen25_0_5b_minpro

Planned for v6e:1, 1 device of 32 GB (experiments/plan.py; compiled, not run):
  prefill    8.57 GB each; 8 x 0.00125 s, compute binds, MFU 97.8 %
  admit      8.35 GB each; 8 x 5.76e-06 s, memory binds, MFU 0 %
  decode     8.75 GB each; 16 x 0.0857 s, memory binds, MFU 11.1 %
  score       8.8 GB each; 1 x 0.337 s, compute binds, MFU 67.5 %
  step       11.3 GB each; 4 x 0.409 s, memory binds, MFU 41.7 %

Planned for h100:1, 1 device of 80 GB (experiments/plan.py; compiled, not run):
  prefill    8.51 GB each; 8 x 0.0023 s, memory binds, MFU 49.5 %
  admit      8.45 GB each; 8 x 2.82e-06 s, memory binds, MFU 0 %
  decode     10.4 GB each; 16 x 0.08 s, memory binds, MFU 11 %
  score       8.4 GB each; 1 x 0.404 s, memory binds, MFU 52.2 %
  step       10.8 GB each; 4 x 0.362 s, compute binds, MFU 43.8 %

Planned for v5e:2x4, 8 devices of 16 GB (experiments/plan.py; compiled, not run):
  prefill     7.1 GB each; 4 x 0.00146 s, compute binds, MFU 97.8 %
  admit      7.22 GB each; 4 x 0.000811 s, memory binds, MFU 0 %
  decode     7.37 GB each; 16 x 0.081 s, memory binds, MFU 6.82 %
  score      8.13 GB each; 1 x 0.157 s, compute binds, MFU 84.2 %
  step         11 GB each; 4 x 0.24 s, memory binds, MFU 41.3 %

With --config.updates.micro_batches=4:
Planned for v5e:2x4*2, 16 devices of 16 GB (experiments/plan.py; compiled, not run):
  prefill    7.01 GB each; 2 x 0.00146 s, compute binds, MFU 97.8 %
  admit      7.08 GB each; 2 x 0.00151 s, network binds, MFU 0 %
  decode     7.28 GB each; 16 x 0.0747 s, memory binds, MFU 3.7 %
  score      8.13 GB each; 1 x 0.0803 s, compute binds, MFU 82.4 %
  step       10.9 GB each; 4 x 0.143 s, memory binds, MFU 34.7 %

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
