"""MinPRO on Qwen3-8B-Base with DAPO-Math-17k.

  python experiments/main.py --config=configs/qwen3_8b_base_minpro.py --workdir=runs/minpro
  python experiments/main.py --config=configs/qwen3_8b_base_minpro.py:cispo --workdir=runs/cispo

The published runs are off-policy because rollouts are delayed by two or more iterations. Here the
sampler's parameters are two iterations old, and each rollout batch gives one optimizer step.

Planned for v5p:2x2x4, 16 devices of 95 GB (experiments/plan.py; compiled, not run):
  prefill    69.4 GB each; 8 x 0.0377 s, compute binds, MFU 84 %
  admit      70.4 GB each; 8 x 0.0088 s, memory binds, MFU 0 %
  decode     72.5 GB each; 128 x 1.89 s, memory binds, MFU 9.68 %
  score      29.6 GB each; 1 x 26.9 s, compute binds, MFU 84.5 %
  step       48.9 GB each; 1 x 89.9 s, compute binds, MFU 75.9 %

Published: 59.4, mean pass@1 of AIME24, AIME25, AMC23, MATH-500, Minerva, OlympiadBench and GSM8K,
best of all baselines (arXiv 2601.22718, second-hand). An independent run on DAPO-Math-17k: 29.72
against 23.96 of GRPO, best avg@16 of AIME24 to AIME26 (arXiv 2606.10968).
Not run here.

Source: the model is from arXiv 2601.22718, second-hand; data, lengths and evaluation are from the
independent run, arXiv 2606.10968. Batch sizes, clip bounds, learning rate and the grid of delays
are unconfirmed: those lines say "ours".
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config

PRESET = "minpro"  # behavior anchor, token mean, weight at most 5 as in cispo


def get_config(preset: str = PRESET):
  config = base_config()
  config.pretrained = "Qwen/Qwen3-8B-Base"
  config.iterations = 300  # ours
  # ours: the last rows of the training file
  config.task.update(name="dataset", heldout_problems=256)
  config.task.data.update(path="BytedTsinghua-SIA/DAPO-Math-17k", split="train", mapping="dapo")
  config.task.prompt.style = "chat"  # ours; the rows ask for "Answer: ..." themselves
  config.rollout.update(prompts=128, group_size=8, max_prompt_tokens=1024)  # ours
  # ours; windows of whole tiles of 128 columns
  config.rollout.update(slots=512, chunk=128, window=2048)
  config.rollout.update(max_new_tokens=8192, temperature=1.0)  # the temperature is ours
  config.updates.update(staleness=2)  # the smallest delay that was studied
  config.updates.update(optimizer_batches=1, token_budget=9216)  # ours
  # ours
  config.optimizer.update(learning_rate=1e-6, b1=0.9, b2=0.999, weight_decay=0.01,
                          max_grad_norm=1.0)
  # every: ours; there also top_p 0.95
  config.evaluation.update(every=20, samples=16, temperature=0.7)
  config.checkpoint.every = 20  # ours
  config.model.update(compute_dtype="bfloat16", remat="dots", scan_layers=True)  # ours
  config.mesh.fsdp = 16  # ours
  return presets.apply(config, preset)
