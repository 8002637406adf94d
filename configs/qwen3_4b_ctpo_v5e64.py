"""CTPO on Qwen3-4B with DeepScaleR for 64 chips of 16 GB: v5litepod-64 of Cloud TPU.

  python experiments/main.py --config=configs/qwen3_4b_ctpo_v5e64.py --workdir=runs/ctpo
  python experiments/main.py --config=configs/qwen3_4b_ctpo_v5e64.py:gspo --workdir=runs/gspo

What is trained is that of qwen3_4b_ctpo_deepscaler.py, which says how it differs from the published
runs. How it is divided is for chips that cannot hold weights and cache alone: four share the heads
of a row, so that each has a quarter of the sampler's copy and of the cache. Rows are packed.

Planned for v5e:8x8, 64 devices of 16 GB (experiments/plan.py; compiled, not run):
  prefill    13.7 GB each; 32 x 0.0102 s, compute binds, MFU 96.2 %
  admit      14.1 GB each; 32 x 0.00427 s, memory binds, MFU 0 %
  decode     14.7 GB each; 504 x 1.29 s, memory binds, MFU 5.36 %
  score      4.72 GB each; 1 x 47.9 s, compute binds, MFU 64.9 %
  step         14 GB each; 16 x 11.3 s, compute binds, MFU 51.6 %

The seconds are those of completions at their limit: 881 s an iteration, 3.1 days for all 305. At a
mean length of .4 it is 316 s (experiments/plans), 1.1 days, most of it decoding, 32 completions on
each four chips at a time.

Published: 51.4 (GSPO 47.7).
avg@32 with tools, mean of AIME25, AIME26, BRUMO25 and HMMT25. arXiv 2605.07331, second-hand. The
GRPO row and the numbers of each benchmark are unconfirmed.
Not run here.

Source: the training script of arXiv 2605.07331 unless a line says "ours".
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config

# Windows of 0.025 and 0.05 sqrt(t), sequence weights up to 5. The mean per sequence is the paper's;
# the script has the token mean: --config.aggregation.name=token.
PRESET = "ctpo"


def get_config(preset: str = PRESET):
  config = base_config()
  config.pretrained = "Qwen/Qwen3-4B"
  config.iterations = 305
  # ours: the last rows of the training file
  config.task.update(name="dataset", heldout_problems=256)
  config.task.data.update(path="agentica-org/DeepScaleR-Preview-Dataset", split="train",
                          mapping="deepscaler")
  # The bare problem as one user message, thinking off. Only the last box is graded (ours; there any
  # of three graders).
  config.task.prompt.update(style="chat", arguments='{"enable_thinking": false}')
  config.task.verifier_workers = 16  # ours
  config.rollout.update(prompts=512, group_size=8, max_new_tokens=8000, temperature=1.0)
  # ours; there 16,000, which here would pad every row to 24,000 tokens
  config.rollout.max_prompt_tokens = 1024
  # ours; windows of whole tiles of 128 columns; 32 rows on each four chips
  config.rollout.update(slots=512, chunk=128, window=2048)
  # 32 prompts per step; packing ours
  config.updates.update(optimizer_batches=16, token_budget=9216)
  config.optimizer.update(learning_rate=1e-6, warmup_steps=0, b1=0.9, b2=0.999, weight_decay=0.01,
                          max_grad_norm=1.0)
  config.kl.coef = config.entropy.coef = 0.0
  config.evaluation.update(every=20, samples=32, temperature=0.7)
  config.checkpoint.every = 20
  config.model.update(compute_dtype="bfloat16", remat="dots", scan_layers=True)  # ours
  config.mesh.update(fsdp=16, tensor=4)  # ours
  return presets.apply(config, preset)
