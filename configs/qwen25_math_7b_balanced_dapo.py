r"""Balanced aggregation on Qwen2.5-Math-7B with DAPO-Math-17k.

  python experiments/main.py --config=configs/qwen25_math_7b_balanced_dapo.py --workdir=runs/math_7b
  python experiments/main.py --config=configs/qwen25_math_7b_balanced_dapo.py \
    --config.aggregation.name=token --workdir=runs/math_7b_token
  python experiments/main.py --config=configs/qwen25_math_7b_balanced_dapo.py \
    --config.aggregation.name=sequence --workdir=runs/math_7b_sequence

The three commands are the columns of the published table.

Planned for v5p:2x2x2, 8 devices of 95 GB (experiments/plan.py; compiled, not run):
  prefill    56.7 GB each; 8 x 0.0673 s, compute binds, MFU 87.9 %
  admit      57.4 GB each; 8 x 0.0116 s, memory binds, MFU 0 %
  decode     58.3 GB each; 48 x 1.68 s, memory binds, MFU 33.5 %
  score      30.4 GB each; 1 x 37.8 s, compute binds, MFU 88.8 %
  step       35.6 GB each; 16 x 8.04 s, compute binds, MFU 78.3 %

Published: .3424 (mean per sequence .3446, which is the best here; token mean .3364).
Last-step accuracy, mean of MATH-500, AIME24, AIME25, OlympiadBench, Minerva and LiveCodeBench.
arXiv 2605.04077, second-hand.
Not run here.

Source: model, data and method are from arXiv 2605.04077, second-hand. Learning rate, batch and
group size, lengths and evaluation are unconfirmed: those lines say "ours".
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config

PRESET = "balanced"


def get_config(preset: str = PRESET):
  config = base_config()
  config.pretrained = "Qwen/Qwen2.5-Math-7B"
  config.iterations = 300  # ours
  # ours: the last rows of the training file
  config.task.update(name="dataset", heldout_problems=256)
  config.task.data.update(path="BytedTsinghua-SIA/DAPO-Math-17k", split="train", mapping="dapo")
  config.task.prompt.style = "chat"  # ours; the rows ask for "Answer: ..." themselves
  config.rollout.update(prompts=128, group_size=16, temperature=1.0)  # ours
  # ours; the model's context is 4,096
  config.rollout.update(max_prompt_tokens=1024, max_new_tokens=3072)
  # ours; windows of whole tiles of 128 columns
  config.rollout.update(slots=1024, chunk=128, window=1024)
  config.updates.update(optimizer_batches=16, token_budget=4096)  # ours
  # ours
  config.optimizer.update(learning_rate=1e-6, b1=0.9, b2=0.999, weight_decay=0.01,
                          max_grad_norm=1.0)
  config.evaluation.update(every=20, samples=16)  # ours
  config.checkpoint.every = 20  # ours
  config.model.update(compute_dtype="bfloat16", remat="dots", scan_layers=True)  # ours
  config.mesh.fsdp = 8  # ours
  config = presets.apply(config, preset)
  if preset == PRESET:
    config.estimator.update(clip_low=0.2, clip_high=0.28)  # ours: DAPO's, after its data
  return config
