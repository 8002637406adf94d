r"""OLMo 2 1B (instruct) on GSM8K, on four TPU chips.

  python experiments/main.py --config=configs/olmo2_1b_gsm8k.py --workdir=runs/olmo2_1b
  python experiments/main.py --config=configs/olmo2_1b_gsm8k.py:ctpo --workdir=runs/olmo2_1b_ctpo

Planned for v5e:2x2, 4 devices of 16 GB (experiments/plan.py; compiled, not run):
  prefill    11.3 GB each; 16 x 0.00428 s, compute binds, MFU 98.9 %
  admit      13.4 GB each; 16 x 0.00846 s, memory binds, MFU 0 %
  decode     12.3 GB each; 40 x 0.458 s, memory binds, MFU 6.1 %
  step       9.17 GB each; 4 x 2.23 s, compute binds, MFU 55.4 %

Planned for v6e:2x2, 4 devices of 32 GB (experiments/plan.py; compiled, not run):
  decode     12.3 GB each; 40 x 0.229 s, memory binds, MFU 2.62 %
  step       9.01 GB each; 4 x 0.631 s, memory binds, MFU 41.9 %

Published: nothing; the recipe is ours. Any preset runs on it.
Not run here.

Source: the columns are read in the data files of GSM8K (arXiv 2110.14168), the instruction in the
evaluation code of Qwen2.5-Math (arXiv 2409.12122). All else is ours.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config

PRESET = "minpro"


def get_config(preset: str = PRESET):
  config = base_config()
  config.pretrained = "allenai/OLMo-2-0425-1B-Instruct"
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
                        slots=128, chunk=64, window=128)
  config.updates.update(optimizer_batches=4, token_budget=2048)
  config.optimizer.update(learning_rate=1e-6, b1=0.9, b2=0.999, weight_decay=0.01,
                          max_grad_norm=1.0)
  config.evaluation.every = 10
  config.checkpoint.every = 20
  config.model.update(compute_dtype="bfloat16", remat="full", scan_layers=True)
  config.mesh.fsdp = 4
  return presets.apply(config, preset)
