r"""Balanced aggregation on Qwen3-1.7B with DAPO-Math-17k.

  python experiments/main.py --config=configs/qwen3_1_7b_balanced_dapo.py --workdir=runs/balanced
  python experiments/main.py --config=configs/qwen3_1_7b_balanced_dapo.py \
    --config.aggregation.name=token --workdir=runs/token
  python experiments/main.py --config=configs/qwen3_1_7b_balanced_dapo.py \
    --config.aggregation.name=sequence --workdir=runs/sequence

The three commands are the columns of the published table.

Planned for v5p:2x2x1, 4 devices of 95 GB (experiments/plan.py; compiled, not run):
  prefill    76.4 GB each; 32 x 0.00831 s, compute binds, MFU 78.9 %
  admit      76.6 GB each; 32 x 0.0113 s, memory binds, MFU 0 %
  decode     77.9 GB each; 512 x 2.01 s, memory binds, MFU 4.93 %
  score      10.9 GB each; 1 x 50.2 s, compute binds, MFU 90.6 %
  step       23.4 GB each; 16 x 11.3 s, compute binds, MFU 75.3 %

Published: .4695, the best (mean per sequence .4481, token mean .4360).
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
  config.pretrained = "Qwen/Qwen3-1.7B"
  config.iterations = 300  # ours
  # ours: the last rows of the training file
  config.task.update(name="dataset", heldout_problems=256)
  config.task.data.update(path="BytedTsinghua-SIA/DAPO-Math-17k", split="train", mapping="dapo")
  # ours; unconfirmed there
  config.task.prompt.update(style="chat", arguments='{"enable_thinking": true}')
  config.rollout.update(prompts=128, group_size=16, temperature=1.0)  # ours
  config.rollout.update(max_prompt_tokens=1024, max_new_tokens=8192)  # ours
  # ours; windows of whole tiles of 128 columns
  config.rollout.update(slots=256, chunk=128, window=2048)
  config.updates.update(optimizer_batches=16, token_budget=9216)  # ours
  # ours
  config.optimizer.update(learning_rate=1e-6, b1=0.9, b2=0.999, weight_decay=0.01,
                          max_grad_norm=1.0)
  config.evaluation.update(every=20, samples=16)  # ours
  config.checkpoint.every = 20  # ours
  config.model.update(compute_dtype="bfloat16", remat="dots", scan_layers=True)  # ours
  config.mesh.fsdp = 4  # ours
  config = presets.apply(config, preset)
  if preset == PRESET:
    config.estimator.update(clip_low=0.2, clip_high=0.28)  # ours: DAPO's, after its data
  return config
