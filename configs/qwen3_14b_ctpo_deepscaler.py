"""CTPO on Qwen3-14B with DeepScaleR: single-turn variant of a recipe with tools.

  python experiments/main.py --config=configs/qwen3_14b_ctpo_deepscaler.py --workdir=runs/ctpo
  python experiments/main.py --config=configs/qwen3_14b_ctpo_deepscaler.py:gspo --workdir=runs/gspo

The published runs let the policy run Python in up to 5 turns per problem. The package has both
(`--config.tool.name=python`, see experiments/README.md), but here a problem is answered in one
turn, without code. So this file cannot be expected to reach the published number. A completion has
the 8,000 tokens that the published one shares with tool output.

Planned for v5p:2x4x4, 32 devices of 95 GB (experiments/plan.py; compiled, not run):
  prefill    81.6 GB each; 16 x 0.066 s, compute binds, MFU 90.7 %
  admit      83.7 GB each; 16 x 0.0137 s, memory binds, MFU 0 %
  decode       87 GB each; 252 x 2.6 s, memory binds, MFU 12.1 %
  score      38.5 GB each; 1 x 111 s, compute binds, MFU 71.6 %
  step       59.2 GB each; 16 x 20.6 s, compute binds, MFU 72.2 %

With --config.mesh.fsdp=8 --config.rollout.slots=192 --config.updates.token_budget=0 \
  --config.updates.micro_batches=32 --config.model.remat=full:
Planned for h200:8, 8 devices of 141 GB (experiments/plan.py; compiled, not run):
  prefill      86 GB each; 66 x 0.0329 s, compute binds, MFU 84.4 %
  admit      88.8 GB each; 66 x 0.00261 s, interconnect binds, MFU 0 %
  decode      124 GB each; 1386 x 1.93 s, memory binds, MFU 5.68 %
  step       48.7 GB each; 16 x 35.3 s, compute binds, MFU 78.2 %

Published: 58.8 (GSPO 55.5, bounds that do not grow with t 55.7).
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
  config.pretrained = "Qwen/Qwen3-14B"
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
  # ours; windows of whole tiles of 128 columns
  config.rollout.update(slots=1024, chunk=128, window=2048)
  # 32 prompts per step; packing ours
  config.updates.update(optimizer_batches=16, token_budget=9216)
  config.optimizer.update(learning_rate=1e-6, warmup_steps=0, b1=0.9, b2=0.999, weight_decay=0.01,
                          max_grad_norm=1.0)
  config.kl.coef = config.entropy.coef = 0.0
  config.evaluation.update(every=20, samples=32, temperature=0.7)
  config.checkpoint.every = 20
  config.model.update(compute_dtype="bfloat16", remat="dots", scan_layers=True)  # ours
  config.mesh.fsdp = 32  # ours
  return presets.apply(config, preset)
