r"""Gemma 3 1B (instruct) on GSM8K, on four TPU chips.

  python experiments/main.py --config=configs/gemma3_1b_gsm8k.py --workdir=runs/gemma3_1b
  python experiments/main.py --config=configs/gemma3_1b_gsm8k.py:minpro \
    --workdir=runs/gemma3_1b_minpro

Planned for v5e:2x2, 4 devices of 16 GB (experiments/plan.py; compiled, not run):
  prefill    8.56 GB each; 4 x 0.0112 s, compute binds, MFU 98.6 %
  admit      11.5 GB each; 4 x 0.0227 s, memory binds, MFU 0 %
  decode     9.59 GB each; 10 x 0.38 s, memory binds, MFU 22.6 %
  score      7.75 GB each; 1 x 1.56 s, compute binds, MFU 77.3 %
  step       9.49 GB each; 4 x 1.94 s, compute binds, MFU 46.6 %

Planned for v6e:2x2, 4 devices of 32 GB (experiments/plan.py; compiled, not run):
  decode     9.59 GB each; 10 x 0.195 s, memory binds, MFU 9.43 %
  step       8.08 GB each; 4 x 0.669 s, memory binds, MFU 29.1 %

Published: nothing; the recipe is ours. Any preset runs on it.
Not run here.

Source: the columns are read in the data files of GSM8K (arXiv 2110.14168), the instruction in the
evaluation code of Qwen2.5-Math (arXiv 2409.12122). All else is ours.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config

PRESET = "ctpo"


def get_config(preset: str = PRESET):
  config = base_config()
  config.pretrained = "google/gemma-3-1b-it"
  config.iterations = 200
  # Of the 1,319 problems, a number that four devices divide.
  config.task.update(name="dataset", heldout_problems=1316)
  config.task.data.update(path="openai/gsm8k:main", split="train", mapping="gsm8k")
  config.task.data.update(heldout_path="openai/gsm8k:main", heldout_split="test")
  config.task.prompt.update(
      style="chat",
      system="Please reason step by step, and put your final answer within \\boxed{}.")
  # All from here on: ours.
  config.rollout.update(prompts=64, group_size=8, max_prompt_tokens=384, max_new_tokens=640,
                        slots=512, chunk=64, window=128)
  config.updates.update(optimizer_batches=4, token_budget=2048)
  config.optimizer.update(learning_rate=1e-6, b1=0.9, b2=0.999, weight_decay=0.01,
                          max_grad_norm=1.0)
  config.evaluation.every = 10
  config.checkpoint.every = 20
  # 22 of 26 layers have a window of 512 tokens; layers of two kinds are not stacked
  config.model.update(compute_dtype="bfloat16", remat="full")
  config.mesh.fsdp = 4
  return presets.apply(config, preset)
